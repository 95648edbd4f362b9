"""Rankings of a batch, their metrics as ParlAI's, and the confidence threshold `--min-probability`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parlai.core.metrics import AverageMetric, Metric
from torch import Tensor

from polyencoder.calibration import Calibration
from polyencoder.data.pool import CandidatePool
from polyencoder.evaluation import merge_twins, of_pool
from polyencoder.scoring import select_best

ObjectiveScores = list[tuple[str, float]]
"""The best candidates of an example with their scores, best first."""


class Ranked(NamedTuple):
    """The rankings of a batch, the metrics of each label, if any, and the milliseconds of each step of a search."""

    results: list[ObjectiveScores]
    metrics: list[dict[str, Metric]] | None
    costs: Mapping[str, float] = {}


# ParlAI's teachers compute these from the reply's text_candidates; the agent adds other requested ones
TEACHER_HITS = tuple(f"hits@{k}" for k in (1, 5, 10, 100))


def convert_metrics(values: Mapping[str, float]) -> dict[str, Metric]:
    """Converts the library's metrics of an example to ParlAI's, without those that teachers compute."""
    return {name: AverageMetric(value) for name, value in values.items() if name not in TEACHER_HITS}


def compute_pool_metrics(
    scores: Tensor, pool: CandidatePool, keys: Sequence[Hashable], *, has_n: bool, hits_at: Sequence[int]
) -> list[dict[str, Metric]]:
    """ParlAI's metrics of each label, from scores [batch, n]. Texts with equal `keys` count as one."""
    metrics = of_pool(*merge_twins(scores, pool, keys), has_n=has_n, hits_at=hits_at)
    return [convert_metrics(values) for values in metrics]


def rank_pool(scores: Tensor, pool: CandidatePool, *, top_k: int) -> list[ObjectiveScores]:
    """At most `top_k` candidates of each example, from scores [batch, n], the right one last among equals."""
    right = None if pool.labels is None else pool.list_right()
    values, columns = select_best(scores, top_k)
    masked = scores.gather(1, columns).isneginf()  # nan becomes -inf in `values`, too
    results = []
    for i, row in enumerate(zip(columns.tolist(), values.tolist(), masked.tolist(), strict=True)):
        names = pool.list_candidates(i)
        pairs = [(names[j], score) for j, score, is_masked in zip(*row, strict=True) if not is_masked]
        results.append(pairs if right is None else sorted(pairs, key=lambda pair: (-pair[1], pair[0] in right[i])))
    return results


@dataclass(frozen=True)
class Confidence:
    """The minimum probability of an answer, and the calibration that computes it."""

    calibration: Calibration
    threshold: float

    def select_answers(self, pairs: Sequence[tuple[str, float]], *, among: int) -> list[tuple[str, float]]:
        """Filters all candidates of a ranking, with scores, best first, by probability; `among` of them differ."""
        texts, scores = [text for text, _ in pairs], [score for _, score in pairs]
        values = self.calibration.of_ranking(texts, scores, among=among)
        return [pair for pair, value in zip(pairs, values, strict=True) if value >= self.threshold]


def compute_answer_metrics(
    answers: Sequence[Sequence[tuple[str, float]]], labels: Sequence[str]
) -> list[dict[str, Metric]]:
    """Metrics of each example: whether it got an answer and, if so, whether it was right."""
    return [
        {"answered": AverageMetric(int(bool(pairs)))}
        | ({"right_of_answered": AverageMetric(int(pairs[0][0].strip() == label.strip()))} if pairs else {})
        for pairs, label in zip(answers, labels, strict=True)
    ]
