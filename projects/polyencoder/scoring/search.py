"""The best candidates of many: the scan, a running top-k over chunks.

Memory is O(chunk x codes + k), whatever the number of candidates, which may be memory-mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.scoring.chunks import chunk_sizes, element_budget
from polyencoder.scoring.context import ContextEncoding
from polyencoder.scoring.exact import at_least_fp32, check_candidates, scale_of, score, score_chunk

# A scan in low precision keeps this many times k candidates, and at least so many, to be scored again: the rounding of
# a bf16 logit (1 part in 256) moves a candidate by a few places, seldom by more.
_SPARE_FACTOR = 4
_SPARE_LEAST = 32


class TopK(NamedTuple):
    """The best candidates of each context, best first."""

    scores: Tensor
    """[batch, k], fp32 or float64."""
    indices: Tensor
    """int64 [batch, k], rows of the candidates."""


@torch.no_grad()
def search(
    context: ContextEncoding,
    candidates: Tensor,
    *,
    k: int,
    attention: str = "basic",
    compute_dtype: torch.dtype | None = None,
    max_elements: int | None = None,
) -> TopK:
    """The k best of the candidates for each context; of equal scores the lowest index comes first.

    The scores returned are always computed in at least fp32 from the candidates as they are stored. If the scan runs
    below that, only its choice of max(4 k, 32) candidates is rounded, and that choice alone can miss one: the search
    is then nearly, not provably, exact. A score that is nan counts as -inf.

    Args:
        context: the encoded contexts, as in `score`; they say where the search runs.
        candidates: [n, dim]; of any float dtype, on any device or memory-mapped. Never copied as a whole.
        k: how many, at most n.
        attention: "basic", "sqrt" or "multihead", as in `score`.
        compute_dtype: of the scan. `torch.bfloat16`, best with candidates stored so, takes about half the time of fp32
            on processors with such instructions. None for the dtype that holds contexts and candidates.
        max_elements: the most floats that temporaries may take; None for a number that suits the device.

    Raises:
        InputError: if k is below 1 or above n, or if shapes, dtypes or the attention type do not fit.
    """
    scale = scale_of(context, attention)
    check_candidates(context, candidates)
    n = candidates.size(0)
    if candidates.dim() != 2:
        raise InputError(f"search wants candidates [n, dim], shared by the contexts; got {list(candidates.shape)}")
    if not 1 <= k <= n:
        raise InputError(f"k must be between 1 and the number of candidates, {n}; got {k}")

    exact_dtype = torch.promote_types(context.vectors.dtype, candidates.dtype)
    scan = context.to(dtype=compute_dtype or exact_dtype)
    exact = context.to(dtype=at_least_fp32(exact_dtype))
    rounded = scan.vectors.element_size() < exact.vectors.element_size()
    keep = min(n, max(_SPARE_FACTOR * k, _SPARE_LEAST)) if rounded else k

    best = TopK(
        exact.vectors.new_empty(context.batch_size, k),
        exact.vectors.new_empty(context.batch_size, k, dtype=torch.int64),
    )
    contexts_at_once, candidates_at_once = chunk_sizes(scan, candidates, max_elements=max_elements)
    for i in range(0, context.batch_size, contexts_at_once):
        rows = slice(i, i + contexts_at_once)
        found = _scan(scan.select(rows), candidates, keep, scale=scale, step=candidates_at_once)
        if rounded:
            found = scored_again(
                exact.select(rows),
                lambda indices: candidates[indices.to(candidates.device)],
                found.indices,
                k=k,
                attention=attention,
                max_elements=max_elements,
            )
        best.scores[rows], best.indices[rows] = found
    return best


class RunningTopK:
    """The k best of candidates that come in pieces, each piece once; of equal scores the first to come stays first."""

    def __init__(self, k: int) -> None:
        self.k = k
        self._best: TopK | None = None

    def add(self, scores: Tensor, indices: Tensor) -> None:
        """Take in the `scores` [batch, n] of the candidates in `indices`, int64 [n]. A score that is nan is -inf."""
        scores, best = _comparable(scores), self._best
        # Almost all candidates are below what is already kept. The few others of any context go on, in the order of
        # their indices and after those kept, so that the stable sort puts the lowest index first among equals.
        if best is not None and best.scores.size(1) == self.k:
            promising = scores > best.scores[:, -1:]
        else:
            promising = scores >= scores.topk(min(self.k, scores.size(1))).values[:, -1:]
        columns = promising.any(dim=0).nonzero().squeeze(1)
        if columns.numel() == 0:
            return
        found = TopK(scores[:, columns], indices[columns].expand(scores.size(0), -1))
        self._best = ranked(found if best is None else joined(best, found), self.k)

    @property
    def best(self) -> TopK:
        """The best so far, fewer than k while fewer have come. At least one candidate must have come."""
        assert self._best is not None
        return self._best


def _scan(context: ContextEncoding, candidates: Tensor, keep: int, *, scale: float, step: int) -> TopK:
    """The `keep` best of all candidates, `step` of them at a time."""
    running = RunningTopK(keep)
    indices = torch.arange(min(step, candidates.size(0)), device=context.vectors.device)
    for start in range(0, candidates.size(0), step):
        scores = score_chunk(context, candidates[start : start + step], scale=scale)  # [batch, step]
        running.add(scores, start + indices[: scores.size(1)])
    return running.best


def scored_again(
    context: ContextEncoding,
    take: Callable[[Tensor], Tensor],
    indices: Tensor,
    *,
    k: int,
    attention: str,
    max_elements: int | None,
) -> TopK:
    """The k best of the candidates in `indices` [batch, kept], by their scores in the dtype of `context`.

    `take` gives the vectors [batch, kept, dim] of some rows of `indices`.
    """
    indices = indices.sort(dim=1).values  # for the order among equals
    at_once = max(1, element_budget(max_elements, indices.device) // (indices.size(1) * context.dim))
    scores = [
        score(
            context.select(slice(i, i + at_once)),
            take(indices[i : i + at_once]),
            attention=attention,
            max_elements=max_elements,
        )
        for i in range(0, indices.size(0), at_once)
    ]
    return ranked(TopK(_comparable(torch.cat(scores)), indices), k)


def joined(first: TopK, second: TopK) -> TopK:
    """What both hold, for the same contexts; not in order."""
    return TopK(torch.cat([first.scores, second.scores], 1), torch.cat([first.indices, second.indices], 1))


def ranked(found: TopK, k: int) -> TopK:
    """The k best in order; equal scores keep the order in which they come."""
    scores, order = found.scores.sort(dim=1, descending=True, stable=True)
    return TopK(scores[:, :k], found.indices.gather(1, order[:, :k]))


def _comparable(scores: Tensor) -> Tensor:
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
