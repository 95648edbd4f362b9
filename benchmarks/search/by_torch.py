"""The peer of the library's search: torch's products in float32 of every row, as the library searched until 2026-11."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from polyencoder.scoring import ContextEncoding, select_best

ROWS = 1 << 15  # scored at once
_FIRST = 2048  # before the others are scored by their largest product alone


@torch.inference_mode()
def search(context: ContextEncoding, vectors: Tensor, *, k: int) -> Tensor:
    """The numbers [1, k] of the best of the rows [n, dim] for one context without a mask.

    The softmax is computed of those rows whose largest product exceeds the k-th best score so far.
    """
    codes, scores, rows = context.vectors[0].T.contiguous(), vectors.new_empty(1, 0), torch.empty(1, 0).long()
    starts = [0, *range(min(_FIRST, len(vectors)), len(vectors), ROWS), len(vectors)]
    for first, end in pairwise(starts):
        logits = vectors[first:end] @ codes
        numbers = torch.arange(first, end, device=vectors.device)
        if scores.size(1) == k:
            promising = logits.amax(1) > scores[0, -1]
            logits, numbers = logits[promising], numbers[promising]
        attended = logits.squeeze(1) if logits.size(1) == 1 else (logits.softmax(1) * logits).sum(1)
        scores, columns = select_best(torch.cat([scores, attended[None]], 1), k)
        rows = torch.cat([rows.to(numbers.device), numbers[None]], 1).gather(1, columns)
    return rows
