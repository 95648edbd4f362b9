"""Exact search: every stored vector is scored, as `polyencoder.scoring` does it, and the best are kept.

Memory is O(chunk x codes + k), whatever the number of rows: the vectors stay in their memory-mapped files.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.index.vectors import Vectors
from polyencoder.scoring.chunks import chunk_sizes
from polyencoder.scoring.context import ContextEncoding
from polyencoder.scoring.exact import at_least_fp32, scale_of, score_chunk
from polyencoder.scoring.search import RunningTopK, TopK, scored_again

__all__ = ["check_search", "scan"]

# A scan in low precision keeps this many times k rows, and at least so many, to be scored again.
_SPARE_FACTOR = 4
_SPARE_LEAST = 256

# Of a chunk that has fewer allowed rows than this share, those are copied out; otherwise all are scored.
_FEW = 0.5


@torch.no_grad()
def scan(
    contexts: ContextEncoding,
    vectors: Vectors,
    *,
    top_k: int,
    allowed: Tensor | None = None,
    attention: str = "basic",
    device: torch.device | str | None = None,
    compute_dtype: torch.dtype | None = None,
    max_elements: int | None = None,
) -> TopK:
    """The best rows for each context; of equal scores the lowest row comes first.

    Scores are those of the vectors as they are stored, computed in at least fp32. int8 vectors are multiplied as whole
    numbers, which floats hold exactly, and the logits with each row's scale. A score that is nan counts as -inf.

    Args:
        contexts: the encoded contexts, any number of them.
        vectors: the vectors of an index.
        top_k: how many; fewer come back if fewer rows are there or allowed.
        allowed: bool [rows], True for the rows that may be found. Files' pages without any such row are not read.
        attention: "basic", "sqrt" or "multihead", as in `polyencoder.scoring.score`.
        device: where to score; None for the contexts' device.
        compute_dtype: of the first pass. `torch.bfloat16` takes about half the time of fp32 on processors with such
            instructions; max(4 k, 256) rows are then scored again in fp32, and their choice alone can miss one: the
            result is nearly, not provably, exact. None for fp32 (float64 if the contexts are).
        max_elements: the most floats that temporaries may take; None for a number that suits the device.

    Returns:
        (scores, indices): [batch, k] in fp32 or float64, and the int64 rows [batch, k], on the contexts' device.

    Raises:
        InputError: `top_k` is below 1, or the contexts, `allowed` or the attention type do not fit.
    """
    check_search(contexts, vectors, top_k=top_k, allowed=allowed)
    scale = scale_of(contexts, attention)
    available = len(vectors) if allowed is None else int(allowed.sum())
    k = min(top_k, available)
    exact = contexts.to(device, dtype=at_least_fp32(contexts.vectors.dtype))
    fast = exact.to(dtype=compute_dtype)
    rounded = fast.vectors.element_size() < exact.vectors.element_size()
    keep = min(available, max(_SPARE_FACTOR * k, _SPARE_LEAST)) if rounded else k

    home = contexts.vectors.device
    best = TopK(
        exact.vectors.new_empty(contexts.batch_size, k, device=home),
        exact.vectors.new_empty(contexts.batch_size, k, device=home, dtype=torch.int64),
    )
    if k == 0:
        return best
    _, one = next(vectors.chunks(1))
    contexts_at_once, rows_at_once = chunk_sizes(fast, one.expand(len(vectors), -1), max_elements=max_elements)
    for i in range(0, contexts.batch_size, contexts_at_once):
        part = slice(i, i + contexts_at_once)
        found = _scan(fast.select(part), vectors, keep, allowed=allowed, scale=scale, step=rows_at_once)
        if rounded:
            found = scored_again(
                exact.select(part),
                lambda rows: vectors.take(rows.flatten().cpu()).unflatten(0, rows.shape).to(rows.device),
                found.indices,
                k=k,
                attention=attention,
                max_elements=max_elements,
            )
        best.scores[part], best.indices[part] = found.scores.to(home), found.indices.to(home)
    return best


def _scan(
    contexts: ContextEncoding, vectors: Vectors, keep: int, *, allowed: Tensor | None, scale: float, step: int
) -> TopK:
    """The `keep` best of the allowed rows, at most `step` rows at a time."""
    running = RunningTopK(keep)
    device = contexts.vectors.device
    for first, chunk in vectors.chunks(step):
        rows = torch.arange(first, first + len(chunk))
        scales = vectors.scales(first, first + len(chunk))
        kept: Tensor | None = None
        if allowed is not None:
            kept = allowed[first : first + len(chunk)].cpu().nonzero().squeeze(1)
            if len(kept) == 0:
                continue
            if len(kept) < _FEW * len(chunk):
                rows, chunk, scales = rows[kept], chunk[kept], None if scales is None else scales[kept]
                kept = None
        scores = score_chunk(contexts, chunk, scale=scale, candidate_scales=scales)
        if kept is not None and len(kept) < len(rows):
            scores, rows = scores[:, kept.to(device)], rows[kept]
        running.add(scores, rows.to(device))
    return running.best


def check_search(contexts: ContextEncoding, vectors: Vectors, *, top_k: int, allowed: Tensor | None) -> None:
    """Raise InputError unless `top_k`, the contexts and `allowed` fit the vectors."""
    if top_k < 1:
        raise InputError(f"top_k must be at least 1, got {top_k}")
    if contexts.dim != vectors.dim:
        raise InputError(
            f"context vectors {list(contexts.vectors.shape)} do not fit an index of dimension {vectors.dim}"
        )
    if allowed is not None and (allowed.dtype != torch.bool or allowed.shape != (len(vectors),)):
        raise InputError(
            f"allowed must be torch.bool [{len(vectors)}], one for each row; got {allowed.dtype} {list(allowed.shape)}"
        )
