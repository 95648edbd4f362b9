"""Approximate inner products of a block of rows with queries, and how far off they may be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from polyencoder.search.contexts import Contexts
from polyencoder.search.rows import Block

Array = np.ndarray[Any, Any]

_ROUNDING = 1e-6  # of numbers in float32 that are computed from products, in parts of the lengths of both vectors
_LEAST = 1e-37  # a radius below which float32 loses digits


class Queries:
    """The vectors of some contexts without keys, for looks at blocks.

    Attributes:
        codes: of each context; where it has fewer, its first one stands again.
        exact: float64 [contexts, codes, dim]; 0 where all codes of a context are masked.
    """

    def __init__(self, contexts: Contexts) -> None:
        vectors, self.codes = contexts.vectors.astype(np.float64), contexts.n_codes
        if contexts.mask is not None:
            first = np.take_along_axis(vectors, contexts.mask.argmax(1)[:, None, None], axis=1)
            has_codes: Array = np.any(contexts.mask, axis=-1)
            first = np.where(has_codes[:, None, None], first, 0)
            vectors = np.where(contexts.mask[..., None], vectors, first)
        self.exact = vectors
        self._flat = vectors.reshape(-1, contexts.dim).astype(np.float32)
        lengths = np.linalg.norm(vectors, axis=2).max(axis=1, initial=0)
        errors = np.linalg.norm(vectors - self._flat.reshape(vectors.shape), axis=2).max(axis=1, initial=0)
        unit = (contexts.dim + 2) * np.finfo(np.float32).eps
        self._errors = (errors + (unit + _ROUNDING) * lengths).astype(np.float32)

    def look(self, block: Block) -> Look:
        """The products of a block's rows with all queries, in float32."""
        vectors = block.vectors().astype(np.float32, copy=False)
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors)) * np.float32(1.001)
        products = (vectors @ self._flat.T).reshape(len(vectors), -1, self.codes)
        return Look(products, lengths[:, None] * self._errors + np.float32(_LEAST))


class Look(NamedTuple):
    """Approximate inner products of rows with the codes of contexts."""

    products: Array
    """float32 [n, contexts, codes]."""
    radius: Array
    """float32 [n, contexts]: a product is at most so far off."""

    def most(self) -> Array:
        """The largest product of each row with the codes of each context: float32 [n, contexts]."""
        most: Array = self.products.max(axis=2) if self.products.shape[2] > 1 else self.products[:, :, 0]
        return most

    def logits(self, places: Array, of: Array) -> tuple[Array, Array]:
        """The products of pairs of a row and a context, float64 [pairs, codes], and their radius."""
        return self.products[places, of].astype(np.float64), self.radius[places, of].astype(np.float64)
