"""Late interaction in numpy: the formulas of `polyencoder.modeling.late`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from polyencoder.search.contexts import Array, ContextTokens


class TokenVectors(NamedTuple):
    """The vectors of one candidate."""

    vector: Array
    """[dim]"""
    tokens: Array
    """[tokens, token_dim], each of length 1, for a late-interaction encoder; empty for other models."""

    @classmethod
    def from_arrays(cls, ids: Sequence[Sequence[int]], vectors: Array, tokens: Array | None) -> list[TokenVectors]:
        """The vectors of candidates with these token ids, from what the graph gives."""
        if tokens is None:
            tokens = np.empty((len(ids), 0, 0), dtype=np.float32)
        # copies, as a view would keep its whole batch in memory
        rows = zip(vectors, tokens, ids, strict=True)
        return [cls(vector.copy(), padded[: max(1, len(row))].copy()) for vector, padded, row in rows]


class LateScore:
    """score(x, c) = w_1 x.c + s (w_2 M(c, x) + w_3 M(x, c) + w_4 max_j cos(y_j, c) + w_5 cos(y_m, c)).

    Args:
        weights: w as `term_weights`, s as `scale`, and `token_weight`, [token_dim], whose product with a candidate's
            token is the softmax logit of that token's weight.
    """

    def __init__(self, weights: Mapping[str, Sequence[float]]) -> None:
        self._weights, (self._scale,), self._token_weight = (
            np.array(weights[name], dtype=np.float32) for name in ("term_weights", "scale", "token_weight")
        )

    def __call__(self, context: ContextTokens, candidates: Sequence[TokenVectors]) -> Array:
        """The scores of candidates, at least one: float32 [candidates]."""
        lengths = [len(candidate.tokens) for candidate in candidates]
        starts = np.cumsum([0, *lengths[:-1]])
        tokens = np.concatenate([candidate.tokens for candidate in candidates])
        similarities = tokens @ context.tokens.T
        logits = tokens @ self._token_weight * np.float32(tokens.shape[1] ** 0.5)
        shares = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), lengths))
        forth = np.add.reduceat(shares * similarities.max(1), starts) / np.add.reduceat(shares, starts)
        back = np.maximum.reduceat(similarities, starts).mean(1)
        vectors = np.stack([candidate.vector for candidate in candidates])
        turns = vectors @ context.turns.T / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        cosines = np.stack([forth, back, turns.max(1), turns[:, -1]], axis=1)
        scores: Array = self._weights[0] * (vectors @ context.vector) + self._scale * (cosines @ self._weights[1:])
        return scores
