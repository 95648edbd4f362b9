"""Activation checkpointing: activations are computed again for the backward pass, not kept, to save memory.

Gradient caching (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021): a batch
goes through the encoder piece by piece, of which nothing but the vectors is kept; once their gradients are known, each
piece goes through again, with the random state it had, and on to the gradients of the weights. `torch.utils.checkpoint`
of every piece is the same within one ordinary backward pass: the engine takes the pieces one after the other, from the
last to the first, and computes again only the one that it is at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyencoder.modeling.cpu.heap import return_free_memory
from polyencoder.modeling.rounding import StepWeights
from polyencoder.text.tokens import TokenBatch, token_batches

__all__ = ["Pieces", "in_pieces"]

T = TypeVar("T")


class Pieces:
    """The pieces of one step of a model, each of which is computed again when its gradients are asked for.

    Under autocast all of them compute with weights that are cast when this is made.

    Args:
        model: which the functions of the pieces call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = StepWeights(model) if torch.is_grad_enabled() else None

    def __call__(self, function: Callable[[TokenBatch], T], tokens: TokenBatch) -> T:
        """`function(tokens)`, without its activations.

        The second time is like the first: the state of the random numbers, on the CPU and on the tokens' device, and
        autocast's are set back. Costs one more forward pass; does nothing where gradients are off.
        """
        weights = self._weights
        if weights is None or not torch.is_grad_enabled():
            return function(tokens)

        # Plain tensors, of which checkpoint sees the device whose random state it has to keep
        def run(ids: Tensor, mask: Tensor, segments: Tensor | None) -> T:
            if ids.device.type == "cpu":
                return_free_memory()  # of the piece before: its vectors or gradients lie in the midst of it
            with _weights_cast_anew(ids.device.type):
                return weights.run(function, TokenBatch(ids, mask, segments))

        result: T = checkpoint(run, tokens.ids, tokens.mask, tokens.segments, use_reentrant=False)
        return result


def in_pieces(
    function: Callable[[TokenBatch], T], tokens: TokenBatch, pieces: Pieces | None, *, max_tokens: int | None
) -> tuple[list[T], Tensor | None]:
    """What `function` gives for each piece of like length, of at most `max_tokens` tokens, padding included.

    And the place of each row in their concatenation; None for a single piece, where there are no pieces or no limit.
    """
    if pieces is None or max_tokens is None:
        return [function(tokens)], None
    places = token_batches(tokens.mask.sum(1).tolist(), max_tokens=max_tokens)
    rows = [torch.tensor(piece, device=tokens.ids.device) for piece in places]
    return [pieces(function, tokens.select(piece)) for piece in rows], torch.argsort(torch.cat(rows))


@contextmanager
def _weights_cast_anew(device: str) -> Iterator[None]:
    """The current autocast, but without its memory of weights already cast, which are those of no linear layer.

    Pieces that share a cast weight would add up its gradient in bfloat16, of which many pieces lose the small parts.
    """
    if not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False):
        yield
