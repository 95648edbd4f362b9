"""`--teacher-model`: a ranker learns another's scores beside the hard labels."""

from __future__ import annotations

from typing import Any

import torch
from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.args import add_distillation_args
from parlai.core.metrics import AverageMetric, SumMetric
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_agent import Batch
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.ranker import Ranker
from polyencoder.training.losses import distillation_kl, margin_mse
from polyencoder.training.score_cache import ScoreCache
from polyencoder.training.teacher import Teacher, shortlist


class DistillingAgent(RankerAgent):
    """An agent that may have a teacher, from which it learns when it trains; evaluation does without."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_distillation_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        check_distillation_options(opt)
        self._teacher: Teacher | None = shared["teacher"] if shared else None
        super().__init__(opt, shared)
        learns = opt.get("teacher_model") and opt["distillation_weight"] > 0 and self._should_initialize_optimizer()
        if learns and not shared:
            self._teacher = self._opened_teacher()

    def share(self) -> dict[str, Any]:
        return {**super().share(), "teacher": self._teacher}

    def reads_turns(self) -> bool:
        return super().reads_turns() or self._teacher is not None

    def losses(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> Tensor:
        hard = super().losses(scores, pool, batch)
        if self._teacher is None:
            return hard
        weight, n = self.opt["distillation_weight"], self.opt["distillation_candidates"] or scores.size(1)
        columns = shortlist(scores, pool.labels, n)  # the label is the first of each
        asked = self._teacher.asked
        teacher = self._teacher.scores(batch.turns, pool.texts, rows_of(columns, pool)).to(scores.device)
        self.global_metrics.add("teacher_pairs", SumMetric(self._teacher.asked - asked))
        student = scores.gather(1, columns.clamp(min=0))
        if self.opt["distillation_loss"] == "kl":
            soft = distillation_kl(student, teacher, temperature=self.opt["distillation_temperature"])
        else:
            soft = margin_mse(student, teacher, torch.zeros_like(pool.labels))
        self.global_metrics.add("distillation_loss", AverageMetric(float(soft.detach().sum()), len(soft)))
        return (1 - weight) * hard + weight * soft

    def _opened_teacher(self) -> Teacher:
        model_file = self.opt.get("model_file")
        path = self.opt.get("teacher_scores") or (f"{model_file}.teacher.sqlite" if model_file else None)
        device = next(self.ranker.parameters()).device
        ranker = Ranker.from_pretrained(self.opt["teacher_model"], device=device)
        return Teacher(ranker, ScoreCache(path), bf16=bool(self.opt.get("bf16")))


def rows_of(columns: Tensor, pool: CandidatePool) -> Tensor:
    """The rows in the pool of these columns of its scores; below 0 where there is none."""
    if pool.index is None:
        return columns
    return pool.index.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -1)


def check_distillation_options(opt: Opt) -> None:
    """Raise ConfigError for options of distillation that cannot be."""
    weight, temperature = opt.get("distillation_weight", 0.5), opt.get("distillation_temperature", 1.0)
    if not 0 <= weight <= 1:
        raise ConfigError(f"--distillation-weight {weight}: must be from 0, the labels alone, to 1, the teacher alone")
    if not temperature > 0:
        raise ConfigError(f"--distillation-temperature {temperature}: must be above 0")
    if (n := opt.get("distillation_candidates", 0)) < 0 or n == 1:
        raise ConfigError(f"--distillation-candidates {n}: must be at least 2, or 0 for all")
    if opt.get("teacher_scores") and not opt.get("teacher_model"):
        raise ConfigError(f"--teacher-scores {opt['teacher_scores']}: whose? Give --teacher-model as well")
