"""Maps scores to the probability that a candidate is right, and that none is (temperature scaling).

Of N candidates at most one is right. Candidate i with score s_i is right with probability

    P(i) = exp(s_i / T) / (N exp(b) + sum_j exp(s_j / T))

and the remaining probability is that none is right. This is temperature scaling (Guo et al., ICML 2017) with one more
option, "none". Its weight grows with N: among more candidates, more wrong ones look good by chance. (If s_i / T is
log p(i | context) / p(i) up to a constant, which training approaches, this is Bayes' rule.) So a calibration fitted to
some number of candidates also applies to more or fewer.

The sum is over all candidates of a ranking. Of a search, which does not know them all, it is over the best `DEPTH`, and
what it finds beyond them has no probability.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polyencoder.calibration.risk import Promise
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.search.scores import check_scores
from polyencoder.storage.files import parse_versioned
from polyencoder.storage.names import CALIBRATION
from polyencoder.validation import Positive, from_json_values, validated

DEPTH = 10
"""The number of best candidates of a search that have a probability."""
FORMAT_VERSION = 4


@validated
class FitData:
    """The data of a fit; distinguishes a calibration for an index from one for ranking."""

    data: str
    examples: int
    candidates: int
    """The mean number for an example, the right one included."""
    date: str
    index: str | None = None
    """The searched index; None if the examples' own candidates were ranked."""


@validated
class Calibration:
    """Turns the scores of one model into probabilities, by this module's formula."""

    temperature: Positive
    """T."""
    none: float
    """b: the logit of "none of these", per candidate."""
    fingerprint: str
    """The model's fingerprint, by `polyencoder.encoding.fingerprint.compute_model_fingerprint`."""
    promises: tuple[Promise, ...] = ()
    """The risks that it promises, in the order in which they were requested."""
    fitted_on: FitData | None = None
    index: Calibration | None = None
    """A separate calibration for searches of an index, if fitted."""

    @property
    def for_search(self) -> Calibration:
        """The calibration for searches of an index."""
        return self.index or self

    def promises_for(self, index: str | None) -> tuple[Promise, ...]:
        """The promises for searches of an index, by its address, or for rankings: a promise holds for one use alone."""
        tested = index if self.fitted_on is None else self.fitted_on.index
        same = tested is index is None or (tested and index and get_index_name(tested) == get_index_name(index))
        return self.promises if same else ()

    def promise(self, risk: float, *, index: str | None) -> Promise:
        """The promise of a risk, for searches of an index or for rankings. ConfigError without it."""
        promises = self.promises_for(index)
        for promise in promises:
            if promise.risk == risk:
                return promise
        use = "ranking" if index is None else f"searching {get_index_name(index)}"
        risks = ", ".join(f"{promise.risk:g}" for promise in promises)
        other = f"{risks} for {use}: give one of these, or" if risks else f"none for {use}:"
        raise ConfigError(
            f"max_risk is {risk:g}, and the calibration promises {other} calibrate the model for this risk, with "
            "`polyencoder calibrate`",
            argument="max_risk",
        )

    def beside(self, other: Calibration | None) -> Calibration:
        """Combines this calibration with another one of the same weights for the other use (ranking, search)."""

        parts = [] if other is None else [replace(other, index=None), *filter(None, [other.index])]
        for part in parts:
            if part._is_of_index != self._is_of_index and part.fingerprint == self.fingerprint:
                return replace(part, index=self) if self._is_of_index else replace(self, index=part)
        return self

    @property
    def _is_of_index(self) -> bool:
        return self.fitted_on is not None and self.fitted_on.index is not None

    def of_model(self, fingerprint: str) -> Calibration:
        """A copy for another fingerprint, such as of the same weights in 16 bits."""
        return replace(self, fingerprint=fingerprint, index=self.index and self.index.of_model(fingerprint))

    def probabilities(self, scores: np.ndarray[Any, Any], *, among: np.ndarray[Any, Any] | int) -> np.ndarray[Any, Any]:
        """The probability that each candidate is the right one.

        Args:
            scores: [batch, k] of different candidates, over which the sum is; -inf for no candidate.
            among: the number of candidates that were ranked: one, or one for each row, [batch].

        Returns:
            float64 [batch, k], 0 to 1.
        """
        logits = np.asarray(scores, dtype=np.float64) / self.temperature
        none = self.none + np.log(np.broadcast_to(among, len(logits)))  # [batch]
        total = np.logaddexp.reduce(np.column_stack([logits, none]), axis=1, keepdims=True)
        return np.exp(logits - total)

    def of_ranking(self, texts: Sequence[str], scores: Sequence[float], *, among: int) -> list[float]:
        """The probabilities of all candidates of a ranking, best first. Equal texts are one candidate."""
        probabilities = self._compute_by_text(texts, scores, among=among, depth=None)
        return [probabilities[text] for text in texts]

    def of_search(self, texts: Sequence[str], scores: Sequence[float], *, among: int) -> list[float | None]:
        """The probabilities of the `DEPTH` best of these candidates, in their order; None for the others."""
        probabilities = self._compute_by_text(texts, scores, among=among, depth=DEPTH)
        return [probabilities.get(text) for text in texts]

    def of_none(self, texts: Sequence[str], scores: Sequence[float], *, among: int) -> float:
        """The probability that none of a ranking is right: what `of_ranking` leaves."""
        return max(0.0, 1 - math.fsum(self._compute_by_text(texts, scores, among=among, depth=None).values()))

    def _compute_by_text(
        self, texts: Sequence[str], scores: Sequence[float], *, among: int, depth: int | None
    ) -> dict[str, float]:
        first: dict[str, float] = {}
        for text, score in sorted(zip(texts, scores, strict=True), key=lambda pair: -pair[1]):
            first.setdefault(text, score)
        best = dict(islice(first.items(), depth))
        if not best:
            return {}
        values = self.probabilities(np.array([[*best.values()]]), among=among)[0].tolist()
        return dict(zip(best, values, strict=True))

    def save(self, model: str | os.PathLike[str]) -> None:
        """Writes it atomically beside the model, for `read_calibration`."""
        from polyencoder.storage.files import reporting_write_errors, write_text  # here: a reader writes no files

        path = calibration_file(model)
        with reporting_write_errors(path, CheckpointError):
            values = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
            write_text(path, json.dumps(values, indent=2) + "\n")


def get_index_name(index: str) -> str:
    """The name of an index, at the end of its path or address: a calibration holds no private paths."""
    return re.split(r"[/\\:]", index.rstrip("/\\"))[-1]


class CalibratedRanker(TextRanker, Protocol):
    """A ranker with a calibration, if it was calibrated."""

    calibration: Calibration | None
    source: Path | None
    """The folder or file that it was loaded from."""


def calibration_file(model: str | os.PathLike[str]) -> Path:
    """The path of the calibration of a model folder or model file."""
    path = Path(model)
    return path / CALIBRATION if path.is_dir() else path.with_name(f"{path.name}.{CALIBRATION}")


def read_calibration(model: str | os.PathLike[str], ranker: TextRanker) -> Calibration | None:
    """Reads the calibration beside a model, for the ranker loaded from there.

    None without one or, with a warning, if it was fitted to other scores: before the last training, or by another
    backend if one of them is int8. Raises CheckpointError if it is damaged or of another version.
    """
    path = calibration_file(model)
    if not path.is_file():
        return None
    again = "calibrate the model again, with `polyencoder calibrate`"
    remedy = f"remove this file and {again}"
    calibration = parse_versioned(
        path.read_bytes(), partial(from_json_values, Calibration), version=FORMAT_VERSION, origin=path, remedy=remedy
    )
    if calibration.fingerprint == compute_model_fingerprint(ranker.model, ranker.text):
        return calibration
    warnings.warn(
        f"{path}: not used, as it was fitted to other weights than the model has now, or with another backend; {again}",
        stacklevel=2,
    )
    return None


def sort_best_first(scores: np.ndarray[Any, Any]) -> list[int]:
    """The positions of scores [n], best first; equal ones in their order. InputError for a nan."""
    return np.argsort(-check_scores(scores), kind="stable").tolist()


def rank_documents(
    documents: Sequence[str], scores: np.ndarray[Any, Any], calibration: Calibration | None, *, top_n: int | None = None
) -> list[tuple[int, float]]:
    """Sorts documents by score, best first: (position, relevance).

    The relevance is the probability that a document is the right one of all, if the model is calibrated; else the
    sigmoid of its score, which is in the order of the scores but no probability.

    Args:
        documents: texts; equal ones count as one.
        scores: [documents].
        top_n: the number of documents to return; None for all.

    Raises:
        InputError: a score is nan.
    """
    positions = sort_best_first(scores)
    values = scores[positions]
    if calibration is None:
        relevance = np.exp(-np.logaddexp(0, -values.astype(np.float64))).tolist()
    else:
        texts = [documents[position] for position in positions]
        relevance = calibration.of_ranking(texts, values.tolist(), among=len(set(documents)))
    return list(zip(positions, relevance, strict=True))[:top_n]
