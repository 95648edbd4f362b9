"""Knowledge distillation: the labels' cross-entropy and, beside it, how far scores are from a teacher's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.training.losses import distillation_kl, margin_mse
from polyencoder.training.objective import CrossEntropy, Loss, Sums
from polyencoder.training.teacher import Teacher, shortlist

__all__ = ["Distillation", "DistillationConfig", "Kind"]

Kind = Literal["kl", "margin-mse"]


def check_distillation(*, weight: float, temperature: float, candidates: int) -> None:
    """Raise ConfigError for numbers that no distillation can have."""
    if not 0 <= weight <= 1:
        raise ConfigError(
            f"the weight of distillation is {weight}; 0 is labels alone, 1 the teacher alone",
            argument="distillation_weight",
        )
    if not temperature > 0:
        raise ConfigError(
            f"the temperature of distillation is {temperature}; it must be above 0", argument="distillation_temperature"
        )
    if candidates < 0 or candidates == 1:
        raise ConfigError(
            f"distillation asks about {candidates} candidates; give 0, for all, or at least 2",
            argument="distillation_candidates",
        )


@dataclass(frozen=True)
class DistillationConfig:
    """From whom a run learns besides the labels, and how; see `Distillation`.

    teacher: a ranker's folder, file or hub id; None for the labels alone. scores: the file that keeps what it said;
    None to remember it in memory.
    """

    teacher: str | None = None
    scores: str | os.PathLike[str] | None = None
    weight: float = 0.5
    kind: Kind = "kl"
    temperature: float = 1.0
    candidates: int = 0

    def __post_init__(self) -> None:
        check_distillation(weight=self.weight, temperature=self.temperature, candidates=self.candidates)

    @property
    def has_teacher(self) -> bool:
        """Whether there is a teacher whose scores count."""
        return self.teacher is not None and self.weight > 0


class Distillation:
    """(1 - weight) x the loss of the labels + weight x that of the teacher.

    Args:
        teacher: whose scores are learnt.
        weight: from 0, the labels alone, to 1, the teacher alone.
        kind: "kl" or "margin-mse"; see `polyencoder.training.losses`.
        temperature: of "kl".
        candidates: how many candidates of an example the teacher is asked about, those that score highest and the
            label; 0 for all.
        labels: the loss of the labels.
    """

    def __init__(
        self,
        teacher: Teacher,
        *,
        weight: float = 0.5,
        kind: Kind = "kl",
        temperature: float = 1.0,
        candidates: int = 0,
        labels: Loss | None = None,
    ) -> None:
        check_distillation(weight=weight, temperature=temperature, candidates=candidates)
        self.teacher, self.weight, self.kind = teacher, weight, kind
        self.temperature, self.candidates, self.labels = temperature, candidates, labels or CrossEntropy()

    def __call__(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> tuple[Tensor, Sums]:
        hard, sums = self.labels(scores, pool, batch)
        assert pool.labels is not None
        assert batch.turns is not None, "distillation needs the contexts as text: Collator(with_turns=True)"
        columns = shortlist(scores, pool.labels, self.candidates or scores.size(1))  # the label is the first of each
        asked = self.teacher.asked
        teacher = self.teacher.scores(batch.turns, pool.texts, rows_of(columns, pool)).to(scores.device)
        student = scores.gather(1, columns.clamp(min=0))
        if self.kind == "kl":
            soft = distillation_kl(student, teacher, temperature=self.temperature)
        else:
            soft = margin_mse(student, teacher, torch.zeros_like(pool.labels))
        own = {
            "teacher_pairs": (float(self.teacher.asked - asked), 0),
            "distillation_loss": (float(soft.detach().sum()), len(soft)),
        }
        return (1 - self.weight) * hard + self.weight * soft, {**sums, **own}


def rows_of(columns: Tensor, pool: CandidatePool) -> Tensor:
    """The rows in the pool of these columns of its scores; below 0 where there is none."""
    if pool.index is None:
        return columns
    return pool.index.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -1)
