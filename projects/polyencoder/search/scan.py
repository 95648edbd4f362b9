"""Exact top-k search: every row is looked at in low precision, and the few that may be among the best are scored again.

A row's logits are known up to a radius, so its score is known up to an interval. A row whose upper end is below the
k-th best score so far cannot be among the best. The others are scored in float64, and these scores order the result:
it does not depend on the precision of the first products. docs/search/exactness.md has the proof.

Memory is O(block x codes + k), whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.products import Queries
from polyencoder.search.rows import ArrayRows, Block, Rows
from polyencoder.search.scores import attend, compute_attention_weights, get_scale, score

_LOGITS = 1 << 21  # of a block; 8 MB, which a cache holds
_UNSHARED = 1 << 19  # multiplications that OpenBLAS leaves to one thread
_MAX_ROWS = 1 << 16  # of a block
_MAX_QUERIES = 1 << 12  # vectors of contexts that a block is multiplied with at once
_FIRST_ROWS = 512  # of a block before there are k scores
_GROWTH = 32  # of blocks, whose rows are compared with the k-th best of those before
# If a smaller share of a block's rows is allowed, these are copied out; otherwise all are multiplied.
_SPARSE = 0.5


class TopK(NamedTuple):
    """The best candidates of each context, best first; of equal scores the first row."""

    scores: Array
    """[contexts, k]: in float32's precision, or float64's for contexts in float64."""
    rows: Array
    """int64 [contexts, k]."""


def search(
    contexts: Contexts, rows: Rows | Array, *, k: int, allowed: Array | None = None, attention: str = "basic"
) -> TopK:
    """Finds the k best rows of each context, or all if there are fewer; reads the rows once.

    Equal scores are ordered by row, and a nan counts as -inf.

    Args:
        rows: `Rows`, or an array of floats [n, dim], which may be mapped into memory.
        k: at least 1.
        allowed: bool [n], True for rows that may be found. Blocks without any are not read.
        attention: "basic", "sqrt" or "multihead"; errors as in `scores.get_scale`.
    """
    if isinstance(rows, np.ndarray):
        rows = ArrayRows(rows)
    if not len(contexts):
        return TopK(np.empty((0, k), contexts.vectors.dtype), np.empty((0, k), np.int64))
    batch_size = max(1, _MAX_QUERIES // contexts.n_codes)
    parts = [contexts.select(slice(i, i + batch_size)) for i in range(0, len(contexts), batch_size)]
    selections = [_Best(part, k=k, attention=attention) for part in parts]
    queries = contexts.n_codes * min(batch_size, len(contexts))
    size = max(1, min(_MAX_ROWS, _LOGITS // queries))
    with np.errstate(all="ignore"):  # infinite and nan bounds keep a row
        for block, mask in _iter_blocks(rows, size, first=max(k, _FIRST_ROWS), k=k, allowed=allowed):
            for selection in selections:
                selection.add(block, mask)
    tops = [selection.get_top() for selection in selections]
    width = min(top.scores.shape[1] for top in tops)
    return TopK(*(np.concatenate([part[:, :width] for part in column]) for column in zip(*tops, strict=True)))


def count_available_rows(rows: Rows, allowed: Array | None) -> int:
    """How many rows are searched."""
    return len(rows) if allowed is None else int(np.count_nonzero(allowed))


class _Best:
    """The best rows so far of a part of the contexts."""

    def __init__(self, contexts: Contexts, *, k: int, attention: str) -> None:
        self._contexts, self._k, self._attention = contexts, k, attention
        self._scale = get_scale(contexts, attention)
        self._queries = None if contexts.keys is not None else Queries(contexts)
        # one entry for each of the k best rows of each context
        self._context_ids = self._rows = np.empty(0, np.int64)
        self._scores = np.empty(0)
        self._thresholds = np.full(len(contexts), -np.inf)  # the k-th best score, which a row must exceed

    def add(self, block: Block, allowed: Array | None) -> None:
        """Adds the best of a block's rows, or of its `allowed` ones."""
        if self._queries is None:
            self._add_scored(block, allowed)
            return
        products = self._queries.multiply(block)
        upper = products.find_largest()  # [n, contexts]
        upper += products.radius
        thresholds = np.nextafter(self._thresholds.astype(np.float32), np.float32(-np.inf))
        # a later row with an equal score is behind; a nan is kept
        promising = ~(upper <= thresholds)
        if allowed is not None:
            promising &= allowed[:, None]
        positions, context_ids = np.divmod(np.flatnonzero(promising), len(self._contexts))
        if not len(context_ids):
            return
        middle, radius = self._compute_intervals(products, positions, context_ids)
        possible = self._find_contenders(context_ids, middle - radius, middle + radius)
        positions, context_ids = positions[possible], context_ids[possible]
        self._merge(context_ids, block.get_row_ids(positions), self._compute_exact(block, positions, context_ids))

    def _compute_intervals(self, products: Any, positions: Array, context_ids: Array) -> tuple[Array, Array]:
        """The scores of pairs by their logits, and how far they may be off."""
        mask = self._contexts.mask
        if self._contexts.n_codes == 1:
            logits, radius = products.compute_logits(positions, context_ids)
            return logits[:, 0], radius
        middle, radius = np.empty(len(context_ids)), np.empty(len(context_ids))
        step = max(1, _LOGITS // self._contexts.n_codes)
        for i in range(0, len(context_ids), step):
            part = slice(i, i + step)
            logits, error = products.compute_logits(positions[part], context_ids[part])
            weights = compute_attention_weights(
                logits, None if mask is None else mask[context_ids[part]], scale=self._scale
            )
            mean = (weights * logits).sum(axis=1)
            spread = np.sqrt((weights * (logits - mean[:, None]) ** 2).sum(axis=1))
            slope = self._scale * np.exp(self._scale * error) * (spread + error)
            middle[part], radius[part] = mean, error * (1 + slope)
        return middle, radius

    def _find_contenders(self, context_ids: Array, lower: Array, upper: Array) -> Array:
        """Which pairs may be among the k best: all but those whose upper end is below the lower ends of k pairs."""
        contexts = np.concatenate([self._context_ids, context_ids])
        ends = np.concatenate([self._scores, np.fmax(lower, -np.inf)])  # a nan is -inf
        order = np.lexsort((-ends, contexts))
        kth = _find_kth(ends[order], self._find_starts(contexts[order]), k=self._k)
        return ~(upper < kth[context_ids])

    def _compute_exact(self, block: Block, positions: Array, context_ids: Array) -> Array:
        """The scores of pairs in float64, rounded to the precision of the contexts."""
        needed, inverse = np.unique(positions, return_inverse=True)
        vectors = block.read_vectors(needed).astype(np.float64)
        scores = np.empty(len(context_ids))
        order = np.argsort(context_ids, kind="stable")
        starts = self._find_starts(context_ids[order])
        for context in np.flatnonzero(starts[1:] > starts[:-1]).tolist():
            pairs = order[starts[context] : starts[context + 1]]
            scores[pairs] = self._score(context, vectors[inverse[pairs]])
        return scores

    def _score(self, context: int, vectors: Array) -> Array:
        assert self._queries is not None
        codes, mask = self._queries.exact[context], self._contexts.mask
        # each product small enough for one thread: on a busy machine a second one costs ten times the product
        step = max(1, _UNSHARED // codes.size)
        logits = np.concatenate([vectors[i : i + step] @ codes.T for i in range(0, len(vectors), step)])
        scores = attend(logits, None if mask is None else mask[context], scale=self._scale)
        return scores if self._contexts.vectors.dtype == np.float64 else round_scores(scores)

    def _add_scored(self, block: Block, allowed: Array | None) -> None:
        """`add` under multi-head attention, where no logit bounds a score: all rows are scored."""
        scores = score(self._contexts, block.read_vectors(), attention=self._attention).astype(np.float64)
        promising = ~(scores < self._thresholds[:, None])  # -inf is among the k best, too, if there are no others
        if allowed is not None:
            promising &= allowed
        context_ids, positions = np.nonzero(promising)
        self._merge(context_ids, block.get_row_ids(positions), scores[context_ids, positions])

    def _merge(self, context_ids: Array, rows: Array, scores: Array) -> None:
        context_ids, rows = np.concatenate([self._context_ids, context_ids]), np.concatenate([self._rows, rows])
        scores = np.concatenate([self._scores, np.fmax(scores, -np.inf)])
        order = np.lexsort((rows, -scores, context_ids))
        context_ids, scores = context_ids[order], scores[order]
        starts = self._find_starts(context_ids)
        within_k = np.arange(len(context_ids)) - starts[context_ids] < self._k
        self._context_ids, self._rows, self._scores = context_ids[within_k], rows[order][within_k], scores[within_k]
        self._thresholds = _find_kth(scores, starts, k=self._k)

    def _find_starts(self, context_ids: Array) -> Array:
        """Where the entries of each context begin, if sorted by context, and where those of the last context end."""
        return np.searchsorted(context_ids, np.arange(len(self._contexts) + 1))

    def get_top(self) -> TopK:
        """The best of each context, the same number for all."""
        shape = len(self._contexts), -1
        if not len(self._context_ids):
            return TopK(np.empty((len(self._contexts), 0)), np.empty((len(self._contexts), 0), np.int64))
        return TopK(self._scores.reshape(shape), self._rows.reshape(shape))


def round_scores(scores: Array) -> Array:
    """Numbers in float64, rounded to the 24 bits of a float32, whatever their size."""
    mantissa, exponent = np.frexp(scores)
    near: Array = np.ldexp(np.rint(np.ldexp(mantissa, 24)), exponent - 24)
    return near


def _find_kth(values: Array, starts: Array, *, k: int) -> Array:
    """The k-th value of each context, whose values begin at its start; -inf where there are fewer."""
    kth = np.full(len(starts) - 1, -np.inf)
    enough = starts[:-1] + k <= starts[1:]
    kth[enough] = values[starts[:-1][enough] + k - 1]
    return kth


def _iter_blocks(
    rows: Rows, size: int, *, first: int, k: int, allowed: Array | None
) -> Iterator[tuple[Block, Array | None]]:
    """Blocks in order, with their allowed rows (None: all): `first` rows until k were read, then up to `size`."""
    n_read = 0
    for chunk in rows.iter_blocks(size):
        stop = 0
        while stop < chunk.size:
            num_rows = first if n_read < k else _GROWTH * n_read
            part = slice(stop, min(stop + num_rows, chunk.size))
            block, stop = chunk.slice_rows(part), part.stop
            mask = None if allowed is None else allowed[block.first : block.first + block.size]
            count = block.size if mask is None else int(np.count_nonzero(mask))
            if count == 0:
                continue
            if count == block.size:
                mask = None
            elif mask is not None and count < _SPARSE * block.size:
                block, mask = block.select(np.flatnonzero(mask)), None
            n_read += count
            yield block, mask
