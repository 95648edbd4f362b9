"""Scores of listed candidates, each of which is encoded once, until the model changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from parlai.agents.ranker.dialogue.fixed import FixedCandidates, VectorCache
from parlai.core.opt import Opt
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.ranker.encoding import encode_candidates
from polyencoder.ranker.ranker import Ranker
from polyencoder.text import TokenBatch

__all__ = ["ListedCandidates"]


class ListedCandidates:
    """Scores the candidates of a batch with the agent's model.

    Args:
        opt: of the agent.
        ranker: returns the agent's model.
        fixed: the fixed candidates, if answers are among them: pools then begin with these.
        on_disk: whether to store the vectors of fixed candidates.
    """

    def __init__(self, opt: Opt, ranker: Callable[[], Ranker], *, fixed: FixedCandidates | None, on_disk: bool) -> None:
        self._batch_size = opt.get("encode_candidate_vecs_batchsize", 256)
        self._ranker, self._fixed, self._on_disk = ranker, fixed, on_disk
        self._cache = VectorCache()

    def clear(self) -> None:
        """Drops the vectors after the model has changed."""
        self._cache.clear()
        if self._fixed is not None:
            self._fixed.clear()

    @torch.no_grad()
    def prepare(self) -> None:
        """Encodes the fixed candidates before the first prompt."""
        if self._fixed is not None:
            ranker = self._ranker()
            ranker.model.eval()
            if ranker.model.reads_pairs:
                self._fixed.scorer(ranker)
            else:
                self._vectors_of(self._fixed, ranker)

    def scores(self, contexts: TokenBatch, pool: CandidatePool) -> Tensor:
        """Scores [batch, n] of each example's candidates; undefined at padding."""
        ranker = self._ranker()
        model = ranker.model
        fixed = self._fixed if pool.index is None else None
        texts = pool.texts if fixed is None else pool.texts[len(fixed.texts) :]
        if model.reads_pairs:
            scores = [] if fixed is None else [fixed.scorer(ranker)(contexts)]
            if texts:
                scores.append(model(contexts, ranker.text.candidates(texts).to(ranker.device), pool.index))
        else:
            encoded = model.encode_context(contexts)
            vectors = [] if fixed is None else self._vectors_of(fixed, ranker)
            if texts:
                own = self._cache.get(texts, lambda new: self._encode(ranker, new))
                vectors = [*vectors, own if pool.index is None else own[pool.index]]
            scores = [model.score(encoded, part) for part in vectors]
        return torch.cat(scores, dim=1)

    def _vectors_of(self, fixed: FixedCandidates, ranker: Ranker) -> list[Tensor]:
        return fixed.vectors(ranker, encode=lambda texts: self._encode(ranker, texts), on_disk=self._on_disk)

    def _encode(self, ranker: Ranker, texts: Sequence[str]) -> Tensor:
        return encode_candidates(ranker.model, ranker.text, texts, batch_size=self._batch_size)
