"""Knowledge distillation: the labels' cross-entropy plus a loss against a teacher's scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.data.pool import CandidatePool
from polyencoder.settings.training import DistillationConfig
from polyencoder.training.losses import distillation_kl, margin_mse
from polyencoder.training.objective import CrossEntropy, Loss, Sums
from polyencoder.training.teacher import Teacher, shortlist


class Distillation:
    """(1 - weight) x loss of the labels + weight x loss against the teacher.

    Args:
        config: weight, loss, temperature and number of candidates.
    """

    def __init__(
        self, teacher: Teacher, config: DistillationConfig | None = None, *, labels: Loss | None = None
    ) -> None:
        self.teacher, self.config, self.labels = teacher, config or DistillationConfig(), labels or CrossEntropy()

    def __call__(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> tuple[Tensor, Sums]:
        config, (hard, sums) = self.config, self.labels(scores, pool, batch)
        assert pool.labels is not None
        assert batch.turns is not None, "distillation needs the contexts as text: Collator(with_turns=True)"
        columns = shortlist(scores, pool.labels, config.candidates or scores.size(1))  # the label is the first of each
        asked = self.teacher.asked
        teacher = self.teacher.scores(batch.turns, pool.texts, rows_of(columns, pool)).to(scores.device)
        student = scores.gather(1, columns.clamp(min=0))
        if config.kind == "kl":
            soft = distillation_kl(student, teacher, temperature=config.temperature)
        else:
            soft = margin_mse(student, teacher, torch.zeros_like(pool.labels))
        own = {
            "teacher_pairs": (float(self.teacher.asked - asked), 0),
            "distillation_loss": (float(soft.detach().sum()), len(soft)),
        }
        return (1 - config.weight) * hard + config.weight * soft, {**sums, **own}

    def has_choice(self, labels: Sequence[float]) -> bool:
        return len(labels) > 1


def rows_of(columns: Tensor, pool: CandidatePool) -> Tensor:
    """Maps columns of a pool's scores to rows of the pool; -1 for no candidate."""
    if pool.index is None:
        return columns
    return pool.index.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -1)
