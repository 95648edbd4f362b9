"""Approximate inner products of a block of rows with queries, and how far off they may be.

Rows in 8 bits are multiplied as integers by numkong, with the processor's own instructions for that (VNNI, AMX, NEON).
With a row c' near a vector c and a query y' near y, |c.y - c'.y'| <= |c - c'| |y| + |c'| |y - y'|. Without numkong, or
rows in 8 bits, products are float32's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.rows import Block, round_up

_ROUNDING = 1e-6  # of numbers in float32 that are computed from products, in parts of the lengths of both vectors
_MIN_RADIUS = np.float32(1e-34)  # a radius below which products of float32 lose digits
_LOST = 1.1e-19  # a number whose square float32 may round to 0
_log = logging.getLogger(__name__)


@cache
def import_numkong() -> Any:
    """The package; None, with a warning in the log, if it cannot be imported."""
    try:
        import numkong
    except ImportError as error:
        _log.warning("numkong cannot be imported (%s): searches compute in float32, which takes longer", error)
        return None
    return numkong


class Queries:
    """The vectors of contexts without keys, to multiply blocks of rows with.

    Attributes:
        codes: the number of vectors of each context; its first vector replaces masked ones.
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
        self._lengths = np.linalg.norm(vectors, axis=2).max(axis=1, initial=0)
        self._quantized: tuple[Callable[[Array], Any], Array, Array] | None = None
        self._in_float32: tuple[Array, Array] | None = None

    def multiply(self, block: Block) -> ApproximateProducts:
        """The products of a block's rows with all queries."""
        if block.quantized is None or import_numkong() is None:
            return self._multiply_float32(block)
        multiply, scales, errors = self._quantize()
        (rows, bounds), lengths = block.quantized, round_up(self._lengths)
        radius = bounds @ np.stack([np.zeros_like(errors), errors, lengths])
        radius += _MIN_RADIUS
        products = np.asarray(multiply(rows)).reshape(len(rows), len(lengths), -1)
        return ApproximateProducts(products, bounds[:, 0], scales, radius)

    def _quantize(self) -> tuple[Callable[[Array], Any], Array, Array]:
        """A function that multiplies rows with all queries; each context's scale and largest error of a vector."""
        if self._quantized is None:
            scales = np.maximum(np.abs(self.exact).max(axis=(1, 2), initial=0) / 127, np.finfo(np.float32).tiny)
            scales = scales.astype(np.float32)
            queries = np.rint(self.exact / scales[:, None, None]).clip(-127, 127)
            errors = np.linalg.norm(self.exact - queries * scales[:, None, None].astype(np.float64), axis=2).max(1)
            errors += 2 * _ROUNDING * self._lengths
            flat = queries.astype(np.int8).reshape(-1, queries.shape[2])
            self._quantized = _get_multiply(flat), scales, round_up(errors)
        return self._quantized

    def _multiply_float32(self, block: Block) -> ApproximateProducts:
        if self._in_float32 is None:
            flat = self.exact.reshape(-1, self.exact.shape[2]).astype(np.float32)
            errors = np.linalg.norm(self.exact - flat.reshape(self.exact.shape), axis=2).max(axis=1, initial=0)
            unit = (self.exact.shape[2] + 2) * np.finfo(np.float32).eps
            self._in_float32 = flat, round_up(errors + (unit + _ROUNDING) * self._lengths)
        flat, distances = self._in_float32
        vectors = block.read_vectors().astype(np.float32, copy=False)
        if block.quantized is None:
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors)) * np.float32(1.001)
            lengths += np.float32(_LOST * self.exact.shape[2] ** 0.5)
        else:
            lengths = block.quantized.bounds[:, 1:].sum(axis=1)
        products = (vectors @ flat.T).reshape(len(vectors), -1, self.codes)
        ones = np.ones(max(len(vectors), len(self.exact)), np.float32)
        radius = lengths[:, None] * distances + _MIN_RADIUS
        return ApproximateProducts(products, ones[: len(vectors)], ones[: len(self.exact)], radius)


def _get_multiply(queries: Array) -> Callable[[Array], Any]:
    """A function that multiplies rows in 8 bits [n, dim] with these: [n, queries], integers."""
    if len(queries) == 1:  # packed, it would be multiplied as four or more
        return lambda rows: import_numkong().cdist(rows, queries, "dot", out_dtype="float32")
    packed = import_numkong().dots_pack(queries, "int8")
    return lambda rows: import_numkong().dots_packed(rows, packed)


class ApproximateProducts(NamedTuple):
    """Approximate inner products of rows with the codes of contexts."""

    products: Array
    """int32 or float32 [n, contexts, codes], to be multiplied by both scales."""
    row_scales: Array
    """float32 [n]"""
    scales: Array
    """float32 [contexts]"""
    radius: Array
    """float32 [n, contexts]: the largest error of a product."""

    def find_largest(self) -> Array:
        """The largest product of each row with the codes of each context: float32 [n, contexts]."""
        products = self.products.max(axis=2) if self.products.shape[2] > 1 else self.products[:, :, 0]
        largest: Array = self.row_scales[:, None] * self.scales
        largest *= products.astype(np.float32, copy=False)
        return np.maximum(largest, -np.finfo(np.float32).max, out=largest)  # not -inf, which no radius makes larger

    def compute_logits(self, positions: Array, context_ids: Array) -> tuple[Array, Array]:
        """The products of pairs of a row and a context, float64 [pairs, codes], and their radius."""
        scales = self.row_scales[positions].astype(np.float64) * self.scales[context_ids]
        logits: Array = self.products[positions, context_ids] * scales[:, None]
        return logits, self.radius[positions, context_ids].astype(np.float64)
