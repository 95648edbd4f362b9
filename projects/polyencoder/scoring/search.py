"""Exact top-k search: scans all candidates in chunks, with a running top-k.

Memory is O(chunk x codes + k), whatever the number of candidates, which may be memory-mapped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.scoring.chunks import chunk_sizes, element_budget
from polyencoder.scoring.context import ContextEncoding
from polyencoder.scoring.exact import at_least_fp32, check_candidates, scale_of, score, score_above, score_chunk
from polyencoder.scoring.precision import full_precision
from polyencoder.scoring.rows import TensorSource, VectorSource, VectorStream, blocks
from polyencoder.scoring.topk import RunningTopK, TopK, comparable, ranked

# A low-precision scan keeps this many times k candidates, and at least `_MIN_SHORTLIST`, to rescore: rounding of a bf16
# logit (1 part in 256) moves a candidate by a few ranks, seldom by more.
_SHORTLIST_FACTOR = 4
_MIN_SHORTLIST = 256

# With fewer candidates than this many times the shortlist, all are scored exactly in one pass.
_WORTH_TWO_PASSES = 4

# Rows scored before the k-th best score serves as a bound for the others.
_FIRST_CHUNK = 2048


@torch.no_grad()
def search(
    context: ContextEncoding,
    candidates: Tensor | VectorSource,
    *,
    k: int,
    allowed: Tensor | None = None,
    attention: str = "basic",
    compute_dtype: torch.dtype | None = None,
    max_elements: int | None = None,
) -> TopK:
    """Finds the k best candidates of each context; equal scores are ordered by index.

    Returned scores are always computed in at least fp32 from the stored candidates, also under autocast. A scan in
    lower precision chooses max(4 k, 256) candidates, which are rescored: it may miss one, so the search is nearly, not
    provably, exact. With fewer than four times as many candidates all are scored in fp32. A nan counts as -inf.

    Args:
        context: the encoded contexts, as in `score`; the search runs on their device.
        candidates: [n, dim] of any float dtype, on any device or memory-mapped, or another `VectorSource`, such as the
            files of an index. Never copied as a whole.
        k: at most n, or the number of allowed candidates.
        allowed: bool [n], True for candidates that may be found. Chunks without any are not read.
        attention: "basic", "sqrt" or "multihead", as in `score`.
        compute_dtype: of the scan. `torch.bfloat16` is faster on processors with such instructions, above all for
            candidates stored in it, which need no conversion. None for fp32, or float64 if a side is.
        max_elements: the most floats for temporaries; None for the device's default.

    Raises:
        InputError: k is below 1 or above the number of candidates, or shapes, dtypes or the attention type do not
            fit.
    """
    scale = scale_of(context, attention)
    if isinstance(candidates, Tensor):
        check_candidates(context, candidates)
        if candidates.dim() != 2:
            raise InputError(f"search needs candidates [n, dim], shared by the contexts; got {list(candidates.shape)}")
    rows = TensorSource(candidates) if isinstance(candidates, Tensor) else candidates
    _check(context, rows, k=k, allowed=allowed)

    dtype = torch.promote_types(context.vectors.dtype, rows.dtype)  # int8 rows do not change it
    exact = context.to(dtype=at_least_fp32(dtype))
    if context.batch_size == 0:
        return TopK(exact.vectors.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=exact.vectors.device))
    fast = exact.to(dtype=compute_dtype)
    keep = max(_SHORTLIST_FACTOR * k, _MIN_SHORTLIST)
    rounded = fast.vectors.element_size() < exact.vectors.element_size()
    if rounded and available_rows(rows, allowed) >= _WORTH_TWO_PASSES * keep:
        found = scan(fast, rows, k=keep, allowed=allowed, scale=scale, max_elements=max_elements)
        return _rescored(exact, rows, found.indices, k=k, attention=attention, max_elements=max_elements)
    return scan(exact if rounded else fast, rows, k=k, allowed=allowed, scale=scale, max_elements=max_elements)


def scan(
    contexts: ContextEncoding,
    rows: VectorStream,
    *,
    k: int,
    allowed: Tensor | None = None,
    scale: float = 1.0,
    max_elements: int | None = None,
) -> TopK:
    """Finds the k best rows of each context (or all, if fewer) in one pass, in the contexts' dtype.

    Each chunk is read once, for all contexts. From the k-th row on, only rows whose logits show that they may be better
    are scored. `scale` is `scoring.exact.scale_of` the attention type.
    """
    device = contexts.vectors.device
    like = torch.empty(1, dtype=rows.dtype, device=rows.device).expand(max(len(rows), 1), rows.dim)
    at_once, step = chunk_sizes(contexts, like, max_elements=max_elements)
    parts = [contexts.select(slice(i, i + at_once)) for i in range(0, contexts.batch_size, at_once)]
    running = [RunningTopK(k) for _ in parts]
    bounded = contexts.keys is None and contexts.n_codes > 1
    first = max(_FIRST_CHUNK, k) if bounded else step
    with full_precision(device):
        for block in blocks(rows, step, first=first, k=k, allowed=allowed, like=contexts.vectors):
            for part, best in zip(parts, running, strict=True):
                if bounded and best.least is not None:
                    scores, kept = score_above(part, block.vectors, best.least, scale=scale)
                    best.add(*block.allowed_of(scores, kept))
                else:
                    best.add(*block.allowed_of(score_chunk(part, block.vectors, scale=scale)))
    found = [best.best for best in running if best.best is not None]
    if not found:
        nothing = contexts.vectors.new_empty(contexts.batch_size, 0, dtype=at_least_fp32(contexts.vectors.dtype))
        return TopK(nothing, nothing.long())
    return TopK(torch.cat([best.scores for best in found]), torch.cat([best.indices for best in found]))


def _rescored(
    context: ContextEncoding, rows: VectorSource, indices: Tensor, *, k: int, attention: str, max_elements: int | None
) -> TopK:
    """Rescores the rows in `indices` [batch, kept] in the dtype of `context`: the k best."""
    indices = indices.sort(dim=1).values  # equal scores are ordered by index
    kept = indices.size(1)
    at_once = max(1, element_budget(max_elements, indices.device) // (kept * context.dim))
    scores = []
    for i in range(0, indices.size(0), at_once):
        some = indices[i : i + at_once]
        vectors = rows.take(some.flatten()).to(indices.device).unflatten(0, some.shape)
        part = context.select(slice(i, i + at_once))
        with full_precision(indices.device):
            scores.append(score(part, vectors, attention=attention, max_elements=max_elements))
    return ranked(TopK(comparable(torch.cat(scores)), indices), k)


def available_rows(rows: VectorStream, allowed: Tensor | None) -> int:
    """How many rows are searched."""
    return len(rows) if allowed is None else int(allowed.sum())


def _check(context: ContextEncoding, rows: VectorStream, *, k: int, allowed: Tensor | None) -> None:
    """Raises InputError unless `k`, the contexts and `allowed` fit the rows."""
    if context.dim != rows.dim:
        raise InputError(f"context vectors {list(context.vectors.shape)} do not fit candidates of dimension {rows.dim}")
    if allowed is not None and (allowed.dtype != torch.bool or allowed.shape != (len(rows),)):
        raise InputError(
            f"allowed must be torch.bool [{len(rows)}], one for each candidate; got {allowed.dtype} "
            f"{list(allowed.shape)}"
        )
    available = available_rows(rows, allowed)
    if not 1 <= k <= available:
        which = "candidates" if allowed is None else "allowed candidates"
        raise InputError(f"k must be between 1 and the number of {which}, {available}; got {k}")
