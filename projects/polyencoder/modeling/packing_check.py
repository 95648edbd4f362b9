"""Checks that an encoder's outputs are the same packed as padded, and computed for start tokens only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polyencoder.errors import get_first_line
from polyencoder.modeling.mode import in_evaluation
from polyencoder.modeling.packing import Packing, pack
from polyencoder.text.tokens import TokenBatch

LARGEST_DIFFERENCE = 1e-4  # relative to the largest output, in float32; attention across sequences differs far more


class _CountingPacking:
    """A packing that counts calls of its attention."""

    def __init__(self, packing: Packing) -> None:
        self._packing, self.calls = packing, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packing, name)

    def attend(self, *inputs: Any, **options: Any) -> Tensor:
        self.calls += 1
        return self._packing.attend(*inputs, **options)


Forward = Callable[[TokenBatch, Any], Tensor]
"""The outputs [batch, length, dim] of tokens, with a packing or with None, for padding."""


@torch.no_grad()
def explain_unpacked(model: nn.Module, run: Forward, *, layers: int, longest: int, window: int) -> str | None:
    """Compares packed with padded outputs of `run` on a few tokens: why they differ, or None. The model is unchanged.

    layers: the expected calls of the packing's attention. longest: tokens of a sequence; window: of attention, or 0.
    """
    tokens = _build_tokens(model, max(1, min(longest, window + 7)))
    mask = tokens.mask
    packing = _CountingPacking(pack(mask))
    try:
        with _computing_exactly(model):
            padded, packed = run(tokens, None)[mask], run(tokens, packing)[mask]
    except Exception as error:  # families that do not take positions, embeddings, ...
        return get_first_line(error)
    if packing.calls != layers:
        return f"{packing.calls} of its {layers} layers use transformers' AttentionInterface"
    if not _is_close(packed, padded):
        return "tokens attend to other sequences"
    return None


@torch.no_grad()
def gives_first(
    model: nn.Module, run: Forward, run_first: Forward, *, change: Callable[[], object], longest: int
) -> bool:
    """Whether outputs are the same after `change`, and `run_first` gives first tokens' outputs (`explain_unpacked`)."""
    tokens = _build_tokens(model, min(longest, 7))
    mask, packing = tokens.mask, pack(tokens.mask, training=False)
    try:
        with _computing_exactly(model):
            expected = run(tokens, packing)
            change()
            actual, first = run(tokens, packing), run_first(tokens, packing)
    except Exception:  # families whose layers are named like BERT's but differ
        return False
    return _is_close(actual[mask], expected[mask]) and _is_close(first, expected[:, :1])


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    same_shape = actual.shape == expected.shape
    return same_shape and bool((actual - expected).abs().max() <= LARGEST_DIFFERENCE * expected.abs().max())


def _build_tokens(model: nn.Module, length: int) -> TokenBatch:
    """Three sequences, the longest of this length."""
    device = next(model.parameters()).device
    lengths = torch.tensor([length, 1, length // 2 + 1], device=device)
    mask = torch.arange(length, device=device) < lengths.unsqueeze(1)
    return TokenBatch((torch.arange(mask.numel(), device=device).view_as(mask) * 7 % 11 + 5) * mask, mask)


@contextmanager
def _computing_exactly(model: nn.Module) -> Iterator[None]:
    """Disables dropout and computes in float32 until the block ends."""
    halves = [(parameter, parameter.data) for parameter in model.parameters() if parameter.dtype != torch.float32]
    precision = torch.get_float32_matmul_precision()
    device = next(model.parameters()).device.type
    torch.set_float32_matmul_precision("highest")
    try:
        for parameter, values in halves:
            parameter.data = values.float()
        with in_evaluation(model), torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for parameter, values in halves:
            parameter.data = values
