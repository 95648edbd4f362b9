"""Calibrates a ranker on held-out examples: ranks or searches, fits the probabilities, and tests the risks."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from polyencoder.calibration import DEPTH, CalibratedRanker, FittedOn
from polyencoder.calibration.fitting import Fit, check_fit, fit
from polyencoder.calibration.probability import name_of
from polyencoder.calibration.risk import CONFIDENCE
from polyencoder.data.example import Example
from polyencoder.data.pairs import read_all_pairs, read_examples
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.errors import InputError, PolyencoderError
from polyencoder.evaluation.observe import observe, observe_search
from polyencoder.index.base import Index
from polyencoder.index.searcher import Searcher
from polyencoder.settings.common import ColumnSettings
from polyencoder.settings.fields import leaves
from polyencoder.storage.names import RECORD

_MOST_READ = 1_000_000  # training pairs
_MOST_KNOWN = 0.1  # the share of examples that may also be training pairs: people often say the same


def calibrate(
    ranker: CalibratedRanker,
    examples: str | os.PathLike[str] | Iterable[Example | Mapping[str, Any]],
    index: Index | None = None,
    *,
    risk: float | Sequence[float] = (),
    confidence: float = CONFIDENCE,
    unanswerable: float = 0.5,
    seed: int = 0,
    data: str = "examples",
    rerank: CalibratedRanker | None = None,
    rerank_k: int | None = None,
    keep_turns: bool = False,
    progress: bool | None = False,
) -> Fit:
    """Sets the calibration of a ranker, beside one for the other use (ranking, searches).

    Args:
        ranker: with an encoder of candidates.
        examples: a file, or records, at least ten; for those without candidates some are drawn, as by `read_examples`.
        index: to calibrate searches of it; None for rankings of the examples' candidates.
        risk: shares of wrong answers to promise, tested on half of the examples.
        confidence: the probability that such a promise holds.
        unanswerable: the expected share of contexts that no candidate answers.
        seed: of drawn candidates, and of the half that is tested.
        data: the name of the data in the calibration's record.
        rerank: a cross-encoder that reranks what is found, and is calibrated instead.
        rerank_k: the number of results that are reranked, see `Searcher`.
        keep_turns: whether a candidate that is a turn of the context is found, see `Searcher`.
        progress: see `progress_bar`.

    Raises:
        InputError: there are too few examples, the model was trained on them, or it finds the right candidate in
            almost no case; see `fit`.
    """
    risks = [risk] if isinstance(risk, (int, float)) else [*risk]
    read, _ = read_examples(examples, with_candidates=index is None, seed=seed)
    check_fit(len(read), unanswerable=unanswerable, risks=risks, confidence=confidence)  # before the model reads them
    ordering = rerank or ranker
    if ordering.source is not None:
        _check_not_trained_on(ordering.source, read)
    left_out = 0
    if index is None:
        observations = observe(ranker, read, progress=progress)
    else:
        enough = DEPTH + max(len(example.right) for example in read)
        searcher = Searcher(
            ranker, index, top_k=enough, texts=enough, reranker=rerank, rerank_k=rerank_k, keep_turns=keep_turns
        )
        observations = observe_search(searcher, read, progress=progress)
        left_out = searcher.left_out
    fitted = fit(
        observations,
        fingerprint=model_fingerprint(ordering.model, ordering.text),
        unanswerable=unanswerable,
        risks=risks,
        confidence=confidence,
        seed=seed,
    )
    fitted_on = FittedOn(
        data=data,
        examples=len(read),
        candidates=round(observations.among.double().mean().item()),
        date=datetime.date.today().isoformat(),
        index=None if index is None else name_of(index.address),
    )
    calibration = replace(fitted.calibration, fitted_on=fitted_on)
    ordering.calibration = calibration.beside(ordering.calibration)
    return fitted._replace(calibration=calibration, left_out=left_out)


def _check_not_trained_on(model: Path, examples: Sequence[Example]) -> None:
    """Raises InputError if the record of the model's run names files with these examples; files may be gone."""
    known: set[tuple[str, str]] = set()
    files = None
    with suppress(OSError, ValueError, TypeError, KeyError, PolyencoderError):
        options = json.loads((model / RECORD).read_bytes())["options"]
        files = options["train"]
        names = {name: options[name] for name in leaves(ColumnSettings) if options.get(name) is not None}
        pairs = read_all_pairs(files, columns=ColumnSettings.of(names).columns, bad=lambda error: None)
        known = {(pair.text, pair.label) for pair in islice(pairs, _MOST_READ)}
    trained = sum((example.text, example.label) in known for example in examples)
    if trained > _MOST_KNOWN * len(examples):
        raise InputError(
            f"the model was trained on {trained:,} of the {len(examples):,} examples, of {files}: its probabilities "
            "would promise too much; calibrate it on others, such as those of `valid`"
        )
