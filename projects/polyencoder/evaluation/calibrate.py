"""Calibrates a ranker on held-out examples: ranks or searches, fits the probabilities, and tests the risks."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyencoder.calibration import DEPTH, CalibratedRanker, FitData
from polyencoder.calibration.fitting import Fit, Observations, check_fit, fit
from polyencoder.calibration.probability import get_index_name
from polyencoder.calibration.risk import CONFIDENCE
from polyencoder.data.example import Example
from polyencoder.data.pairs import HUB, count_held_out, read_all_pairs, read_examples
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import InputError, PolyencoderError
from polyencoder.evaluation.examples import example_scores
from polyencoder.index.base import Index
from polyencoder.index.searcher import Searcher
from polyencoder.progress import create_progress
from polyencoder.search.scores import check_scores
from polyencoder.settings.fields import get_leaves
from polyencoder.settings.train import DataSettings
from polyencoder.storage.names import RECORD

_MAX_PAIRS = 1_000_000  # training pairs
_MAX_RUNS = 10  # each of which began with the model of the next
_MAX_SEEN = 0.1  # the share of examples that may also be training pairs: people often say the same


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
        risk, confidence, unanswerable, seed: as in `fit`; the seed also draws candidates.
        data: the name of the data in the calibration's record.
        rerank: a cross-encoder that reranks what is found, and is calibrated instead.
        rerank_k, keep_turns: see `Searcher`.

    Raises:
        InputError: there are too few examples, the model was trained on them, or it finds the right candidate in
            almost no case; see `fit`.
    """
    risks = [risk] if isinstance(risk, (int, float)) else [*risk]
    read, _ = read_examples(examples, with_candidates=index is None, seed=seed)
    check_fit(len(read), unanswerable=unanswerable, risks=risks, confidence=confidence)  # before the model reads them
    ordering = rerank or ranker
    for source in {ranker.source, ordering.source}:
        _check_not_trained_on(source, read)
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
        fingerprint=compute_model_fingerprint(ordering.model, ordering.text),
        unanswerable=unanswerable,
        risks=risks,
        confidence=confidence,
        seed=seed,
    )
    fitted_on = FitData(
        data=data,
        examples=len(read),
        candidates=round(observations.among.double().mean().item()),
        date=datetime.date.today().isoformat(),
        index=None if index is None else get_index_name(index.address),
    )
    calibration = replace(fitted.calibration, fitted_on=fitted_on)
    ordering.calibration = calibration.beside(ordering.calibration)
    return fitted._replace(calibration=calibration, left_out=left_out)


def _check_not_trained_on(model: Path | None, examples: Sequence[Example]) -> None:
    """Raises InputError if the model, or a model that it began with, was trained on these examples.

    The records of their runs name the files. Without a record, or with missing files, nothing is known.
    """
    for _ in range(_MAX_RUNS):
        if model is None:
            return
        files, seen, model = _read_run(model)
        trained = sum((example.text, example.label) in seen for example in examples)
        if trained > _MAX_SEEN * len(examples):
            raise InputError(
                f"the model was trained on {trained:,} of the {len(examples):,} examples, of {files}: its "
                "probabilities would promise too much; calibrate it on others, such as the validation data"
            )


def _read_run(model: Path) -> tuple[str, set[tuple[str, str]], Path | None]:
    """The files of the run that trained a model, their examples, and the ranker that it began with."""
    keys, begun = list[tuple[str, str]](), None
    files = ""
    with suppress(OSError, ValueError, TypeError, KeyError, PolyencoderError):
        record = json.loads((model / RECORD).read_bytes())
        options, folder = record["options"], record.get("folder", "")
        begun = options.get("init") and Path(folder, options["init"])
        data = DataSettings.of({name: options[name] for name in get_leaves(DataSettings) if name in options})
        files = data.train
        is_hub = files.startswith(HUB)
        names = files if is_hub else ",".join(os.path.join(folder, name.strip()) for name in files.split(","))
        pairs = read_all_pairs(names, columns=data.columns, bad=lambda error: None)
        keys = [(pair.text, pair.label) for pair in islice(pairs, _MAX_PAIRS)]
        if data.valid is None and not data.streaming:
            keys = keys[: -count_held_out(len(keys))]
    return files, set(keys), begun


_AT_ONCE = 32  # contexts per search


def observe(ranker: TextRanker, examples: Sequence[Example], *, progress: bool | None = False) -> Observations:
    """Ranks each example's own candidates, deduplicated. `progress`: see `create_progress`."""
    scored = example_scores(ranker, examples)
    return collect_observations(
        examples, create_progress(scored, step="ranking", unit="examples", total=len(examples), show=progress)
    )


def collect_observations(examples: Sequence[Example], scored: Iterable[tuple[int, Tensor]]) -> Observations:
    """The observations of examples from the scores of their candidates, as `example_scores` yields them."""
    ranked: list[_Ranked] = [([], [], 0)] * len(examples)
    for i, scores in scored:
        by_text = dict(zip(examples[i].choices, scores.tolist(), strict=True))
        ranked[i] = _rank_scores(by_text, examples[i].right, among=len(by_text))
    return _stack(ranked)


def observe_search(searcher: Searcher, examples: Sequence[Example], *, progress: bool | None = False) -> Observations:
    """Searches for each example's context.

    The search finds `DEPTH` hits and one for each right candidate, if the index has that many. With a cross-encoder the
    scores are those of the hits that it read. `progress`: see `create_progress`.
    """
    if searcher.top_k == 0:
        raise InputError("the index is empty")
    ranked: list[_Ranked] = []
    with create_progress(step="searching", unit="contexts", total=len(examples), show=progress) as bar:
        for i in range(0, len(examples), _AT_ONCE):
            batch, among = examples[i : i + _AT_ONCE], searcher.among
            for hits, example in zip(searcher([example.turns for example in batch]), batch, strict=True):
                scores: dict[str, float] = {}
                for hit in hits:
                    score = hit.score if searcher.reranker is None else hit.rerank_score
                    if score is not None:
                        scores.setdefault(hit.text.strip(), score)
                ranked.append(_rank_scores(scores, [text.strip() for text in example.right], among=among))
            bar.update(len(batch))
    return _stack(ranked, depth=DEPTH)


_Ranked = tuple[list[float], list[bool], int]
"""The scores in order, which of them are right, and the number of candidates that were ranked."""


def _rank_scores(scores: dict[str, float], right: Collection[str], *, among: int) -> _Ranked:
    check_scores(np.array([*scores.values()]))
    order = sorted(scores, key=lambda text: (-scores[text], text in right))  # ties count as wrong
    return [scores[text] for text in order], [text in right for text in order], among


def _stack(ranked: list[_Ranked], *, depth: int | None = None) -> Observations:
    width = max((len(best) for best, _, _ in ranked), default=0)
    scores = torch.full((len(ranked), max(width, 1)), -torch.inf, dtype=torch.float64)
    right = torch.zeros_like(scores, dtype=torch.bool)
    for row, (best, are_right, _) in enumerate(ranked):
        scores[row, : len(best)] = torch.tensor(best, dtype=torch.float64)
        right[row, : len(best)] = torch.tensor(are_right, dtype=torch.bool)
    return Observations(scores, right, torch.tensor([among for _, _, among in ranked]), depth)
