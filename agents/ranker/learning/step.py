"""From a batch to an update of the model."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from parlai.agents.ranker.candidates import CandidatePool
from parlai.agents.ranker.model_agent import RankerModelAgent
from parlai.agents.ranker.ranking import ranks
from parlai.core.metrics import AverageMetric
from parlai.core.torch_agent import Batch, Output
from torch import Tensor

from polyencoder.text import TokenBatch


class LearningAgent(RankerModelAgent):
    """An agent that learns from batches: `learning_pool`, `learn`, an update, `record`."""

    def forget_vectors(self) -> None:
        """The model has changed: whatever was computed with it is stale."""

    @abstractmethod
    def _pool(self, batch: Batch, source: str) -> CandidatePool:
        """The candidates of a batch from `source`, on the batch's device."""

    def train_step(self, batch: Batch) -> Output | None:
        if batch.text_vec is None:
            return None
        self.forget_vectors()
        self.model.train()
        self.zero_grad()
        pool = self.learning_pool(batch)
        scores, losses = self.learn(batch, pool)
        self.update_params()
        self.record(scores, losses, pool)
        if not self.opt.get("train_predict"):
            return Output()
        return Output([pool.candidates(i)[column] for i, column in enumerate(scores.argmax(1).tolist())])

    def learning_pool(self, batch: Batch) -> CandidatePool:
        """What the examples of a batch choose from."""
        return self._pool(batch, self.candidates)

    def learn(self, batch: Batch, pool: CandidatePool) -> tuple[Tensor, Tensor]:
        """Put the gradients of the batch's mean loss into the parameters; its scores [batch, n] and losses [batch]."""
        contexts = contexts_of(batch)
        candidates = self.dict.text.candidates(pool.texts).to(contexts.ids.device)
        with self.autocast():
            self.measure_scaling(contexts, candidates)
            scores = pool.masked(self.model(contexts, candidates, pool.index))
        losses = self.losses(scores, pool, batch)
        self.backward(losses.mean())
        return scores.detach(), losses.detach()

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
