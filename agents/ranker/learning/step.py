"""ParlAI's training step is the library's: the agent holds a `Trainer`, behind which ParlAI's optimizer stands."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from parlai.agents.ranker.architecture import describe_in_opt
from parlai.agents.ranker.args import MAX_NONFINITE
from parlai.agents.ranker.console import show_library_log
from parlai.agents.ranker.learning.parts import callbacks, check_options, objective, open_teacher
from parlai.agents.ranker.model_agent import RankerModelAgent
from parlai.agents.ranker.sources import WITHOUT_NEGATIVES
from parlai.core.metrics import AverageMetric, SumMetric
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch, Output
from parlai.utils.distributed import is_distributed
from torch import Tensor

from polyencoder.data import collator
from polyencoder.data.pool import CandidatePool
from polyencoder.errors import TrainingError, first_line
from polyencoder.evaluation import ranks
from polyencoder.modeling import RankerModel
from polyencoder.ranker import Ranker
from polyencoder.text import TokenBatch
from polyencoder.training.distributed import sum_gradients
from polyencoder.training.finite import FiniteUpdates
from polyencoder.training.objective import Outcome, Ranking
from polyencoder.training.teacher import Teacher
from polyencoder.training.trainer import Trainer


class LearningAgent(RankerModelAgent):
    """An agent that learns from batches, perhaps as one of several processes.

    ParlAI wraps the model in DistributedDataParallel, which gives all processes the weights of the first. Its gradients
    are those of one forward pass for one backward pass, the same in every process; what is encoded in pieces, or not at
    all, is more than that. So the wrapper is taken off again, and `update_params` sums the gradients.
    """

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        check_options(opt)
        show_library_log()
        self._finite = FiniteUpdates(limit=opt.get("max_nonfinite", MAX_NONFINITE))
        self._teacher: Teacher | None = shared["teacher"] if shared else None
        self._trainer: Trainer | None = None
        self._losses_are_finite = True  # those of the last batch
        super().__init__(opt, shared)
        self.model = self.ranker
        if not shared and self._should_initialize_optimizer():
            self._teacher = open_teacher(opt, self.ranker)

    def share(self) -> dict[str, Any]:
        return {**super().share(), "teacher": self._teacher}

    def build_model(self) -> RankerModel:
        if is_distributed() and not self.use_cuda:
            self.model_parallel = True  # else ParlAI names a GPU to DistributedDataParallel, also where there is none
        return super().build_model()

    def forget_vectors(self) -> None:
        """The model has changed: whatever was computed with it is stale."""

    @abstractmethod
    def training_pool(self, batch: Batch) -> CandidatePool:
        """What the examples of a batch choose from."""

    # ---- a step

    @property
    def trainer(self) -> Trainer:
        """The trainer of this agent's model, made when it is first needed."""
        if self._trainer is None:
            model, text = self.ranker, self.dict.text
            ranker = Ranker(model, text, device=next(model.parameters()).device)
            scaled = self._scaled if self._scaling_is_to_be_measured else None
            self._trainer = Trainer(
                ranker,
                callbacks=callbacks(self.opt, ranker, scaled=scaled),
                objective=objective(self.opt, model, text, self._teacher),
                updates=ParlaiUpdates(self),
            )
        return self._trainer

    def train_step(self, batch: Batch) -> Output | None:
        usable = batch.text_vec is not None
        if not usable and not is_distributed():
            return None
        if self._trainer is None:
            self.refuse_to_overwrite()
        self.forget_vectors()
        trainer = self.trainer
        skipped = self._ranking.skipped_examples
        examples = collator.Batch(contexts_of(batch), self.training_pool(batch), turns=batch.turns) if usable else None
        outcome = trainer.step(examples)
        if left_out := self._ranking.skipped_examples - skipped:
            self.global_metrics.add(WITHOUT_NEGATIVES, SumMetric(left_out))
        if outcome is None or not len(outcome):
            return None
        if self._losses_are_finite:
            self.record(outcome)
        if not self.opt.get("train_predict"):
            return Output()
        best = outcome.scores.argmax(1).tolist()
        return Output([outcome.pool.candidates(row)[column] for row, column in enumerate(best)])

    def check_has_learnt(self) -> None:
        """Raise InputError if there were batches, and in none of them anything to choose: a run for nothing."""
        if self._trainer is not None:
            self._ranking.check_has_learnt()

    @property
    def _ranking(self) -> Ranking:
        assert isinstance(self.trainer.objective, Ranking)
        return self.trainer.objective

    def record(self, outcome: Outcome) -> None:
        """Add what was learnt from a batch to the training report."""
        rank = ranks(outcome.scores, outcome.pool.labels)
        n = len(rank)
        self.global_metrics.add("mean_loss", AverageMetric(float(outcome.losses.sum()), n))
        self.global_metrics.add("train_accuracy", AverageMetric(int((rank == 1).sum()), n))
        self.global_metrics.add("rank", AverageMetric(int(rank.sum()), n))
        self.global_metrics.add("mrr", AverageMetric(float((1 / rank).sum()), n))
        for name, (value, count) in outcome.sums.items():
            self.global_metrics.add(name, AverageMetric(value, count) if count else SumMetric(value))

    def _scaled(self, _: float) -> None:
        """`--output-scaling auto` was measured."""
        self._scaling_is_to_be_measured = False
        describe_in_opt(self.opt, self.ranker.config)

    # ---- an update

    def backward(self, loss: Tensor, **options: Any) -> None:
        """As ParlAI's, but no gradient leaves this process before `update_params`."""
        steps = self.opt.get("update_freq", 1)
        if steps > 1:
            loss = loss / steps
            self._number_grad_accum = (self._number_grad_accum + 1) % steps
        if self.fp16:
            self.optimizer.backward(loss, update_main_grads=False, **options)
        else:
            loss.backward(**options)

    def update_params(self) -> None:
        """As ParlAI's, with the gradients of all processes; left out where a loss or a gradient is not finite."""
        if self._number_grad_accum == 0:
            if is_distributed():
                sum_gradients(self.ranker.parameters())
            if self._finite.leaves_out(self.ranker, number=self._number_training_updates + 1, scaled=self.fp16):
                self._leave_out_update()
                return
        try:
            super().update_params()
        except FloatingPointError as error:
            raise TrainingError(f"--fp16: {first_line(error)}") from None

    def _leave_out_update(self) -> None:
        """Count an update, and step the schedule, without learning from its gradients."""
        self.zero_grad()
        self.global_metrics.add("nonfinite_updates", SumMetric(1))
        self._number_training_updates += 1
        if self.scheduler:
            self.scheduler.step(self._number_training_updates)

    def autocast(self) -> torch.autocast:
        """bfloat16 where `--bf16` asks for it."""
        device = "cuda" if self.use_cuda else "cpu"
        return torch.autocast(device, torch.bfloat16, enabled=bool(self.opt.get("bf16")))


class ParlaiUpdates:
    """ParlAI's optimizer, schedule and precision, as the library's `Updates`."""

    def __init__(self, agent: LearningAgent) -> None:
        self._agent = agent

    @property
    def count(self) -> int:
        return int(self._agent._number_training_updates)

    def autocast(self) -> torch.autocast:
        return self._agent.autocast()

    def zero_grad(self) -> None:
        self._agent.zero_grad()

    def check_losses(self, losses: Tensor) -> bool:
        self._agent._losses_are_finite = self._agent._finite.check_losses(losses)
        return self._agent._losses_are_finite

    def backward(self, loss: Tensor) -> None:
        self._agent.backward(loss)

    def step(self) -> None:
        self._agent.update_params()


def contexts_of(batch: Batch) -> TokenBatch:
    """The contexts of a batch, as the models take them."""
    return TokenBatch(batch.text_vec, batch.text_mask)
