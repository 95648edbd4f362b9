"""Gradient caching: recomputes activations in the backward pass, chunk by chunk, to save memory.

Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021. Only the vectors of each
chunk stay in memory; `torch.utils.checkpoint` computes the rest again, with the same random state, for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyencoder.modeling.cpu.heap import return_free_memory
from polyencoder.modeling.rounding import CastOncePerStep
from polyencoder.text.batches import cut_into_batches
from polyencoder.text.tokens import TokenBatch

T = TypeVar("T")


class Pieces:
    """Checkpoints the chunks of a training step, recomputed in the backward pass, with weights that are cast once."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = CastOncePerStep(model) if torch.is_grad_enabled() else None

    def __call__(self, function: Callable[[TokenBatch], T], tokens: TokenBatch) -> T:
        """Computes `function(tokens)`, in training at the cost of one more forward pass instead of its activations."""
        weights = self._weights
        if weights is None or not torch.is_grad_enabled():
            return function(tokens)

        # Plain tensors, so that checkpoint sees which device's random state to keep
        def run(ids: Tensor, mask: Tensor, segments: Tensor | None) -> T:
            if ids.device.type == "cpu":
                return_free_memory()  # fragmented by the previous chunk
            kind = ids.device.type
            casts, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            # chunks that share a weight's cached cast would add up its gradient in bfloat16
            with torch.autocast(kind, dtype, enabled=casts, cache_enabled=False):
                return weights.run(function, TokenBatch(ids, mask, segments))

        return checkpoint(run, tokens.ids, tokens.mask, tokens.segments, use_reentrant=False)


def apply_in_pieces(
    function: Callable[[TokenBatch], T], tokens: TokenBatch, pieces: Pieces | None, *, max_tokens: int | None
) -> tuple[list[T], Tensor | None]:
    """Applies `function` to chunks of similar length, of at most `max_tokens` tokens with padding.

    Returns the results, and each row's position in their concatenation (None for a single chunk: without `pieces` or
    a limit).
    """
    if pieces is None or max_tokens is None:
        return [function(tokens)], None
    batches = cut_into_batches(tokens.mask.sum(1).tolist(), max_tokens=max_tokens)
    chunks = [torch.tensor(batch, device=tokens.ids.device) for batch in batches]
    return [pieces(function, tokens.select(chunk)) for chunk in chunks], torch.argsort(torch.cat(chunks))
