"""Training objective: a batch to a differentiable loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.data.pool import CandidatePool, build_inline_pool, build_shared_pool, merge_equal
from polyencoder.modeling.base import RankerModel
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TextEncoder, TokenBatch
from polyencoder.training.distributed import Processes, gather_vectors
from polyencoder.training.gathered_negatives import GatheredStep, gather_step
from polyencoder.training.gradient_caching import encode
from polyencoder.training.losses import softmax_loss
from polyencoder.training.term_weights import fit_weights

Sums = Mapping[str, tuple[float, int]]
"""Metrics as (sum, count), to add up over batches and processes; count 0 for a plain sum."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a batch.

    loss: differentiable; its sum over all processes is the mean loss of their examples. losses: [batch], and scores:
    [batch, n], -inf at padding, both detached. pool: the scored candidates. sums: further metrics.
    """

    loss: Tensor
    losses: Tensor
    scores: Tensor
    pool: CandidatePool
    sums: Sums = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.losses)


class Objective(Protocol):
    """The objective that a `Trainer` minimises; returns None if no process has an example.

    skipped: batches of this process skipped because no example had a wrong candidate. skipped_examples: such examples,
    in these batches and in others.
    """

    skipped: int
    skipped_examples: int

    def __call__(self, batch: Batch | None) -> Outcome | None: ...


class Loss(Protocol):
    """The loss of each example [batch] from masked scores [batch, n], with further metrics."""

    def __call__(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> tuple[Tensor, Sums]: ...

    def has_choice(self, labels: Sequence[float]) -> bool:
        """Whether candidates with these labels leave anything to learn; an example without is skipped."""
        ...


class CrossEntropy:
    """-log softmax of the label's score among the candidates (Section 4.2 of Humeau et al., ICLR 2020).

    The probabilities of several right candidates add up (`losses.softmax_loss`). `label_smoothing` is the probability
    that the other candidates share.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def __call__(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> tuple[Tensor, Sums]:
        assert pool.labels is not None
        if self.label_smoothing or pool.relevance is not None:
            return softmax_loss(scores, pool.numbers, smoothing=self.label_smoothing), {}
        return F.cross_entropy(scores, pool.labels, reduction="none"), {}

    def has_choice(self, labels: Sequence[float]) -> bool:
        return 0 in labels


class LabelLoss:
    """A loss of the scores and the labels as numbers, both [batch, n] (`losses.LABEL_LOSSES`).

    `pointwise`: it needs no second candidate.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], *, pointwise: bool) -> None:
        self._loss, self._pointwise = loss, pointwise

    def __call__(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> tuple[Tensor, Sums]:
        return self._loss(scores, pool.numbers), {}

    def has_choice(self, labels: Sequence[float]) -> bool:
        return self._pointwise or len(set(labels)) > 1


class ObjectiveScores(NamedTuple):
    """The scores of one objective, [batch, n], and a mask of the examples that have it, [batch]; None for all."""

    name: str
    scores: Tensor
    present: Tensor | None = None


class RankingObjective:
    """Ranks the label above the other candidates, in one process or several.

    The losses of a model's objectives are summed; reported scores are the first one's. A new model whose score has
    weights of its terms first gets those that fit the first batch.

    Args:
        text: its tokenizer, for candidates added within a step.
        loss: of the scores.
        gather_negatives: with in-batch candidates, also use those of the other processes' batches.
        grad_cache: contexts of maximum length per chunk of gradient caching; 0: no limit.
        pair_tokens: a cross-encoder's tokens per chunk of gradient caching; 0: no limit.
        dims: the loss is summed over these numbers of first dimensions of the vectors, too.
    """

    def __init__(
        self,
        model: RankerModel,
        text: TextEncoder,
        *,
        loss: Loss | None = None,
        gather_negatives: bool = False,
        grad_cache: int = 0,
        pair_tokens: int = 0,
        dims: Sequence[int] = (),
    ) -> None:
        self.model, self.text, self.loss = model, text, loss or CrossEntropy()
        self.gather_negatives, self.dims = gather_negatives, tuple(dims)
        self.skipped = self.skipped_examples = 0
        self._processes = Processes.from_group()
        self.max_tokens = (grad_cache * text.config.longest_context if model.has_vectors else pair_tokens) or None

    def __call__(self, batch: Batch | None) -> Outcome | None:
        """Scores a batch; None in a process without examples, which still takes part in the collectives."""
        local = None
        if batch is not None:  # candidates with equal tokens would be negatives of each other
            merged = merge_equal(batch.pool, self._list_keys(batch.pool))
            local = batch if merged is batch.pool else replace(batch, pool=merged, candidates=None)
        joins = self.gather_negatives and self._processes.count > 1  # others' candidates may then be negatives
        if local is not None and not (joins and local.pool.lists is None):
            local = self._drop_without_choice(local)
        pool = build_shared_pool([], []) if local is None else local.pool
        examples = 0 if local is None else len(local)
        keys = self._list_keys(pool) if joins else pool.texts
        step = gather_step(pool, examples, processes=self._processes, gather=self.gather_negatives, keys=keys)
        if not step.examples:
            return None
        if joins and not step.pool.has_negatives:
            if local is not None:
                self._skip(local)
            return None
        if self.model.has_new_terms:
            self._fit_terms(local, step)
        if local is None:
            return self._assist(step)
        first, *others = self.score(local, step)
        scores = step.pool.mask_scores(first.scores)
        losses, sums = self.loss(scores, step.pool, local)
        for scored in others:
            added, added_sums = self.loss(step.pool.mask_scores(scored.scores), step.pool, local)
            for name, (value, count) in added_sums.items():
                if not count:  # a plain sum; means are the first objective's
                    sums = {**sums, name: (sums.get(name, (0.0, 0))[0] + value, 0)}
            added = added if scored.present is None else added.where(scored.present, 0)
            count = len(added) if scored.present is None else int(scored.present.sum())
            losses = losses + added
            if count:  # 0 means a plain sum
                sums = {**sums, f"{scored.name}_loss": (float(added.detach().sum()), count)}
        return Outcome(losses.sum() / step.examples, losses.detach(), scores.detach(), step.pool, sums)

    def _fit_terms(self, batch: Batch | None, step: GatheredStep) -> None:
        """Fits the weights of a new model's terms to this step's examples in all processes."""
        scores, weights = None, self.model.term_weights
        if batch is not None:
            tokens = self._get_tokens(step.pool.texts, batch, step)
            scores = self.model.build_weighted_scorer(batch.contexts, tokens, step.pool.index)
        with torch.no_grad():
            weights.copy_(fit_weights(scores, step.pool, start=weights))

    def _drop_without_choice(self, batch: Batch) -> Batch | None:
        """Drops examples that leave nothing to rank, mostly those with the label alone; None if no other is left."""
        candidates, labels, relevance = batch.pool.lists, batch.pool.labels, batch.pool.relevance
        sizes = [len(batch.pool.texts)] * len(batch) if candidates is None else list(map(len, candidates))
        numbers = [[1.0, 0.0]] * len(batch) if relevance is None else relevance.tolist()
        rows = [row for row, size in enumerate(sizes) if self.loss.has_choice(numbers[row][:size])]
        if len(rows) == len(batch):
            return batch
        if not rows:
            self._skip(batch)
            return None
        if candidates is None:  # the others have a choice among the same candidates
            return batch
        assert labels is not None
        self.skipped_examples += len(batch) - len(rows)
        pool = build_inline_pool(
            [candidates[row] for row in rows], [candidates[row][int(labels[row])] for row in rows]
        ).to(labels.device)
        if relevance is not None and pool.index is not None:
            pool = replace(pool, relevance=relevance[rows, : pool.index.size(1)])
        turns = None if batch.turns is None else [batch.turns[row] for row in rows]
        contexts = batch.contexts.select(torch.tensor(rows, device=batch.contexts.ids.device))
        return replace(batch, contexts=contexts, pool=pool, candidates=None, turns=turns)

    def _list_keys(self, pool: CandidatePool) -> list[tuple[int, ...]]:
        return [tuple(ids) for ids in self.text.tokenize_candidates(pool.texts)]

    def _skip(self, batch: Batch) -> None:
        self.skipped += 1
        self.skipped_examples += len(batch)

    def score(self, batch: Batch, step: GatheredStep) -> list[ObjectiveScores]:
        """Scores the step's candidates, for each objective of the model."""
        contexts, model = batch.contexts, self.model
        if model.reads_pairs:  # pairs with all processes' candidates are scored here
            candidates = self._get_tokens(step.pool.texts, batch, step)
            scores = model.score_objectives(contexts, candidates, step.pool.index, max_tokens=self.max_tokens)
            return [ObjectiveScores(name, values) for name, values in scores.items()]
        candidates = self._get_tokens(step.local_texts, batch, step)
        encoded, vectors = encode(model, contexts, candidates, max_tokens=self.max_tokens)
        if step.counts is not None:
            vectors = gather_vectors(vectors, step.counts)
        vectors = vectors if step.pool.index is None else vectors[step.pool.index]
        objectives = model.split_objectives(encoded).items()
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        with torch.autocast(vectors.device.type, enabled=False):  # bfloat16's resolution at 16 is 1/8
            vectors = vectors.to(dtype)
            scored = [
                ObjectiveScores(name, model.score(encoding.to(dtype=dtype), vectors), _find_present(encoding))
                for name, encoding in objectives
            ]
            for dim in self.dims:
                short = replace(encoded, vectors=model.truncate_vectors(encoded.vectors.to(dtype), dim))
                scored.append(
                    ObjectiveScores(
                        f"{dim}_dim", model.score(short, model.truncate_vectors(vectors, dim)), _find_present(short)
                    )
                )
            return scored

    def _get_tokens(self, texts: Sequence[str], batch: Batch, step: GatheredStep) -> TokenBatch:
        """The tokens of these candidates: the batch's own if there are no others."""
        if step.counts is None and batch.candidates is not None:
            return batch.candidates
        return self.text.pad(self.text.tokenize_candidates(texts)).to(batch.contexts.ids.device)

    def _assist(self, step: GatheredStep) -> Outcome:
        """Joins a step without own examples: collectives in the backward pass need every process."""
        device = next(self.model.parameters()).device
        ids = torch.zeros(0, 1, dtype=torch.long, device=device)
        nothing = torch.zeros((), device=device, requires_grad=True)
        contexts = TokenBatch(ids, ids.bool())
        scores = torch.zeros(0, len(step.pool.texts), device=device)
        if step.counts is not None and not self.model.reads_pairs:
            parts = [scored.scores for scored in self.score(Batch(contexts, step.pool), step)]
            scores, nothing = parts[0], nothing + torch.stack(parts).sum()
        return Outcome(nothing, torch.zeros(0, device=device), scores.detach(), step.pool)


def _find_present(context: ContextEncoding) -> Tensor | None:
    """Mask [batch] of the contexts with any code; None if all have."""
    return None if context.mask is None else context.mask.any(1)
