"""Chunk sizes of scoring: how many contexts and candidates fit a memory budget."""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.scoring.context import ContextEncoding

# 32 MB on a CPU: fits the last-level cache, and needs few steps. Threads synchronise several times in each step: on a
# busy machine a quarter of this took almost twice as long.
_CPU_ELEMENTS = 2**23
# 256 MB on an accelerator: hides the kernel launches.
_ACCELERATOR_ELEMENTS = 2**26

# With fewer candidates per matrix product, loading the codes costs as much as multiplying them.
_CANDIDATES_WORTH_A_PRODUCT = 512

# Temporaries of each pair of candidate and code: logit, scaled logit, weight, product.
_FLOATS_PER_LOGIT = 4


def element_budget(max_elements: int | None, device: torch.device) -> int:
    """The most floats for the temporaries of a step: `max_elements`, or the device's default.

    Raises:
        InputError: if `max_elements` is below 1.
    """
    if max_elements is None:
        return _CPU_ELEMENTS if device.type == "cpu" else _ACCELERATOR_ELEMENTS
    if max_elements < 1:
        raise InputError(f"max_elements must be at least 1, got {max_elements}")
    return max_elements


def chunk_sizes(context: ContextEncoding, candidates: Tensor, *, max_elements: int | None) -> tuple[int, int]:
    """The number of contexts and candidates to score in one step.

    Args:
        context: all contexts, in the dtype and on the device where the scoring runs.
        candidates: [..., n, dim], all of them; a step copies its part if their dtype or device differs.
        max_elements: the budget, as in `element_budget`; a single context and candidate may exceed it.

    Returns:
        (contexts, candidates), both at least 1.
    """
    budget = element_budget(max_elements, context.vectors.device)
    n = max(candidates.size(-2), 1)
    copied = candidates.dtype != context.vectors.dtype or candidates.device != context.vectors.device
    for_copy = context.dim if copied else 0
    logits = context.n_codes * (1 if context.keys is None else 2)
    if candidates.dim() == 3:  # each context has its own candidates
        for_context, for_candidate = _FLOATS_PER_LOGIT * logits + for_copy, 0
    else:
        for_context, for_candidate = _FLOATS_PER_LOGIT * logits, for_copy

    contexts = (budget // min(n, _CANDIDATES_WORTH_A_PRODUCT) - for_candidate) // for_context
    contexts = max(1, min(contexts, context.batch_size))
    return contexts, max(1, min(budget // (contexts * for_context + for_candidate), n))
