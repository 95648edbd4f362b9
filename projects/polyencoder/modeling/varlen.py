"""Variable-length attention on a GPU: packed sequences, without padding.

flash-attention where it is installed, else torch's own (`torch.nn.attention.varlen`, from torch 2.10 on), which knows
no dropout. Both want 16-bit numbers, and a GPU of compute capability 8.0 or more.
"""

from __future__ import annotations

import importlib.util
import inspect
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Kernel", "has_kernel", "kernel_for"]

_LARGEST_HEAD = 256  # dimensions
_GIVEN = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")  # to torch's kernel, by place


class Kernel(Protocol):
    """Attention within each sequence of rows [tokens, heads, dim]."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        ends: Tensor,
        longest: int,
        dropout: float,
        scale: float | None,
        window: int | None,
    ) -> Tensor: ...


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for this type of numbers on this device, for some models at least."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8 and (_flash_attention() or _torchs()) is not None


def kernel_for(query: Tensor, *, dropout: float, window: int | None) -> Kernel | None:
    """The kernel for rows like `query`, [tokens, heads, dim]; None where there is none."""
    size = query.size(-1)
    if not has_kernel(query.device, query.dtype) or size % 8 or size > _LARGEST_HEAD:
        return None
    if flash := _flash_attention():
        return flash
    return None if dropout or (window is not None and "window_size" not in _options_of_torchs()) else _torchs()


@cache
def _flash_attention() -> Kernel | None:
    if importlib.util.find_spec("flash_attn") is None:
        return None
    try:
        varlen = import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, AttributeError, RuntimeError):  # built for another torch
        return None

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        ends: Tensor,
        longest: int,
        dropout: float,
        scale: float | None,
        window: int | None,
    ) -> Tensor:
        sides = (-1, -1) if window is None else (window - 1, window - 1)
        output: Tensor = varlen(
            query,
            key,
            value,
            cu_seqlens_q=ends,
            cu_seqlens_k=ends,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            dropout_p=dropout,
            softmax_scale=scale,
            window_size=sides,
        )
        return output

    return attend


@cache
def _torchs() -> Kernel | None:
    known = _options_of_torchs()
    if known[: len(_GIVEN)] != _GIVEN:  # none, or no longer the one that is known here
        return None
    varlen = import_module("torch.nn.attention.varlen").varlen_attn

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        ends: Tensor,
        longest: int,
        dropout: float,
        scale: float | None,
        window: int | None,
    ) -> Tensor:
        options: dict[str, Any] = {}
        if window is not None:
            options["window_size"] = (window - 1, window - 1)
        if scale is not None and "scale" in known:
            options["scale"] = scale
        elif scale is not None:  # the first version has the usual one alone
            query = query * (scale * query.size(-1) ** 0.5)
        output: Tensor = varlen(query, key, value, ends, ends, longest, longest, **options)
        return output

    return attend


@cache
def _options_of_torchs() -> tuple[str, ...]:
    """The parameters of torch's kernel, of which those behind the first came one by one; none where there is none."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return ()
    kernel = getattr(import_module("torch.nn.attention.varlen"), "varlen_attn", None)
    return () if kernel is None else tuple(inspect.signature(kernel).parameters)
