"""From a batch to an update of the model."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from parlai.agents.ranker.learning.joint import JointAgent, Step, joint_step
from parlai.agents.ranker.sources import WITHOUT_NEGATIVES
from parlai.core.metrics import AverageMetric, SumMetric
from parlai.core.torch_agent import Batch, Output
from parlai.utils.distributed import is_distributed
from torch import Tensor

from polyencoder.data.pool import CandidatePool, shared_pool
from polyencoder.errors import InputError
from polyencoder.evaluation import ranks
from polyencoder.text import TokenBatch

SHARED = ("batch", "batch-all-cands")  # sources of candidates that serve every example of a batch
HOPELESS = 100  # batches without anything to learn, from the beginning of a run on


class LearningAgent(JointAgent):
    """An agent that learns from batches: `learning_pool`, `learn`, an update, `record`."""

    skipped_batches = 0
    """So many had one candidate for all of their examples, and so nothing to learn."""
    has_learnt = False

    def forget_vectors(self) -> None:
        """The model has changed: whatever was computed with it is stale."""

    @abstractmethod
    def _pool(self, batch: Batch, source: str) -> CandidatePool:
        """The candidates of a batch from `source`, on the batch's device."""

    def train_step(self, batch: Batch) -> Output | None:
        usable = batch.text_vec is not None
        if not usable and not is_distributed():
            return None
        if not self.has_learnt:
            self.refuse_to_overwrite()
        self.forget_vectors()
        self.model.train()
        self.zero_grad()
        pool = self.learning_pool(batch) if usable else shared_pool([], [])
        gather = bool(self.opt.get("gather_negatives")) and self.candidates in SHARED
        joins = is_distributed() and gather  # then the others' candidates may be negatives
        if usable and not joins and not pool.has_negatives:
            self.skip(batch)
            usable, pool = False, shared_pool([], [])
            if not is_distributed():
                return None
        step = joint_step(pool, batch.batchsize if usable else 0, gather=gather)
        if not step.examples:
            return None
        if joins and not step.pool.has_negatives:
            self.skip(batch)
            return None
        self.has_learnt = True
        if not usable:
            self.assist(step)
            self.update_params()
            return None
        scores, losses = self.learn(batch, step)
        is_finite = self._finite.see(losses)
        self.update_params()
        if is_finite:
            self.record(scores, losses, step.pool)
        if not self.opt.get("train_predict"):
            return Output()
        return Output([step.pool.candidates(i)[column] for i, column in enumerate(scores.argmax(1).tolist())])

    def skip(self, batch: Batch) -> None:
        """Leave out a batch in which the label is the only candidate: its loss is 0, whatever the model is."""
        self.skipped_batches += 1
        self.global_metrics.add(WITHOUT_NEGATIVES, SumMetric(batch.batchsize))
        if self.skipped_batches >= HOPELESS and not self.opt.get("hard_negatives"):
            self.check_has_learnt()

    def check_has_learnt(self) -> None:
        """Raise InputError if there were batches, and in none of them anything to choose: a run for nothing."""
        if self.skipped_batches and not self.has_learnt:
            raise InputError(
                f"nothing was learnt: in all of {self.skipped_batches} batches the label was the only candidate "
                f"(--candidates {self.candidates}); give a larger --batchsize, or data with different labels"
            )

    def learning_pool(self, batch: Batch) -> CandidatePool:
        """What the examples of a batch choose from."""
        return self._pool(batch, self.candidates)

    def learn(self, batch: Batch, step: Step) -> tuple[Tensor, Tensor]:
        """Put the batch's part of the gradients of the step's mean loss into the parameters.

        Gives the scores [batch, n] and losses [batch].
        """
        contexts = contexts_of(batch)
        with self.autocast():
            self.measure_scaling(contexts, step.pool.texts)
            scores = step.pool.masked(self.learning_scores(contexts, step))
        losses = self.losses(scores, step.pool, batch)
        self.backward(losses.sum() / step.examples)
        return scores.detach(), losses.detach()

    def assist(self, step: Step) -> None:
        """Do this process's part of a step in which it has no example of its own; the others wait for it."""
        device = next(self.ranker.parameters()).device
        ids = torch.zeros(0, 1, dtype=torch.long, device=device)
        contexts = TokenBatch(ids, ids.bool())
        nothing = torch.zeros((), device=device, requires_grad=True)
        with self.autocast():
            self.measure_scaling(contexts, step.pool.texts)
            if step.counts is not None:
                nothing = nothing + self.learning_scores(contexts, step).sum()
        self.backward(nothing)

    @abstractmethod
    def learning_scores(self, contexts: TokenBatch, step: Step) -> Tensor:
        """Scores [batch, n] of the step's candidates to learn from."""

    def losses(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> Tensor:
        """The loss of each example: [batch], from masked scores [batch, n]."""
        return F.cross_entropy(scores, pool.labels, reduction="none")

    def record(self, scores: Tensor, losses: Tensor, pool: CandidatePool) -> None:
        """Add what was learnt from a batch to the training report."""
        rank = ranks(scores, pool.labels)
        n = len(rank)
        self.global_metrics.add("mean_loss", AverageMetric(float(losses.sum()), n))
        self.global_metrics.add("train_accuracy", AverageMetric(int((rank == 1).sum()), n))
        self.global_metrics.add("rank", AverageMetric(int(rank.sum()), n))
        self.global_metrics.add("mrr", AverageMetric(float((1 / rank).sum()), n))

    def autocast(self) -> torch.autocast:
        """bfloat16 where `--bf16` asks for it."""
        device = "cuda" if self.use_cuda else "cpu"
        return torch.autocast(device, torch.bfloat16, enabled=bool(self.opt.get("bf16")))


def contexts_of(batch: Batch) -> TokenBatch:
    """The contexts of a batch, as the models take them."""
    return TokenBatch(batch.text_vec, batch.text_mask)
