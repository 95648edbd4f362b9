"""Scores of vectors in numpy: the formulas of `polyencoder.scoring.exact`, but for multi-head attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyencoder.config import Attention
from polyencoder.export.onnx.graph import stacked
from polyencoder.runtime.late import ContextTokens
from polyencoder.text.batches import Array

_LOGITS = 1 << 21  # of contexts that are scored at once; a few arrays of this size are in memory


@dataclass(frozen=True, eq=False)
class Contexts:
    """A batch of encoded contexts.

    Args:
        vectors: float32 [contexts, codes, dim].
        mask: bool [contexts, codes], False at padding; None without padding.
        tokens: what a late-interaction encoder compares of each context besides; None of other models.
    """

    vectors: Array
    mask: Array | None = None
    tokens: list[ContextTokens] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def batch_size(self) -> int:
        return len(self.vectors)

    @property
    def n_codes(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def context_vectors(self) -> Array:
        """The vector of each context, [contexts, dim], of a model that `has_one_vector`."""
        return self.vectors[:, 0] if self.tokens is None else np.stack([one.vector for one in self.tokens])

    def codes(self) -> list[Array]:
        """The vectors of each context, without padding: [n, dim]."""
        masks = [slice(None)] * len(self) if self.mask is None else self.mask
        return [vectors[mask] for vectors, mask in zip(self.vectors, masks, strict=True)]

    def select(self, places: Sequence[int]) -> Contexts:
        """The contexts at these places."""
        arrays: list[Any] = [array if array is None else array[[*places]] for array in self._arrays]
        return replace(Contexts(*arrays), tokens=self.tokens and [self.tokens[place] for place in places])

    @classmethod
    def concatenated(cls, parts: Sequence[Contexts]) -> Contexts:
        """The contexts of several batches, padded to the most codes."""
        columns = zip(*(part._arrays for part in parts), strict=True)
        arrays: list[Any] = [None if column[0] is None else stacked(column) for column in columns]
        return replace(cls(*arrays), tokens=[one for part in parts for one in part.tokens or ()] or None)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self.vectors, self.mask


Score = Callable[[Contexts, Array], Array]
"""Contexts and candidates [n, dim] -> scores [contexts, n]."""


def score(contexts: Contexts, candidates: Array, *, attention: Attention = "basic") -> Array:
    """Scores candidates [n, dim] for each context: float32 [contexts, n]. `attention` is "basic" or "sqrt"."""
    at_once = max(1, _LOGITS // max(1, contexts.vectors.shape[1] * len(candidates)))
    if at_once >= len(contexts):
        return _score(contexts, candidates, attention=attention)
    parts = [range(i, min(i + at_once, len(contexts))) for i in range(0, len(contexts), at_once)]
    scores = [_score(contexts.select(part), candidates, attention=attention) for part in parts]
    return np.concatenate(scores)


def _score(contexts: Contexts, candidates: Array, *, attention: Attention) -> Array:
    vectors, mask = contexts.vectors, contexts.mask
    if mask is not None:
        vectors = np.where(mask[..., None], vectors, 0)
    logits = _products(vectors, candidates)
    if logits.shape[-1] == 1:
        return logits[..., 0]
    weighing = logits * np.float32(vectors.shape[-1] ** -0.5 if attention == "sqrt" else 1)
    if mask is not None:  # not -inf: if all codes are masked, weights are uniform, not nan
        weighing = np.where(mask[:, None], weighing, np.finfo(np.float32).min)
    weights = np.exp(weighing - weighing.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    total: Array = (weights * logits).sum(axis=-1)
    return total


def _products(vectors: Array, candidates: Array) -> Array:
    """Inner products: [contexts, codes, dim] with [n, dim] -> [contexts, n, codes]."""
    flat = candidates @ vectors.reshape(-1, vectors.shape[-1]).T
    return np.ascontiguousarray(flat.reshape(len(candidates), *vectors.shape[:2]).swapaxes(0, 1))
