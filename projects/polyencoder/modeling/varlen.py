"""Variable-length attention on a GPU: packed sequences, without padding.

Uses `torch.nn.attention.varlen` (torch 2.10 or later), which needs 16-bit dtypes and a GPU of compute capability 8.0
or more, and has no dropout.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

_LARGEST_HEAD = 256  # dimensions
_POSITIONAL = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")  # arguments of torch's kernel


class AttentionOptions(NamedTuple):
    """Options of attention."""

    dropout: float = 0.0
    """The dropout rate of the attention weights."""
    scale: float | None = None
    """The scale of products of queries and keys; None for 1 / sqrt(dim)."""
    window: int | None = None
    """Tokens attend to tokens less than this many positions away; None for the whole sequence."""
    bias: Tensor | None = None
    """[heads, length, length] of the longest sequence: added to all sequences' scores, from their first token on."""


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, int, AttentionOptions], Tensor]
"""Variable-length attention: query, key and value [tokens, heads, dim], cumulative lengths int32 [sequences + 1],
maximum length, options -> [tokens, heads, dim]."""


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a kernel supports this dtype on this device, at least for some models."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8 and _load_torch_kernel() is not None


def find_kernel(query: Tensor, options: AttentionOptions) -> Kernel | None:
    """The kernel for rows like `query`, [tokens, heads, dim]; None without one."""
    size = query.size(-1)
    windowed = options.window is not None and "window_size" not in _list_torch_options()
    if options.dropout or options.bias is not None or windowed or size % 8 or size > _LARGEST_HEAD:
        return None
    return _load_torch_kernel() if has_kernel(query.device, query.dtype) else None


@cache
def _load_torch_kernel() -> Kernel | None:
    parameters = _list_torch_options()
    if parameters[: len(_POSITIONAL)] != _POSITIONAL:  # no kernel, or its signature has changed
        return None
    varlen = import_module("torch.nn.attention.varlen").varlen_attn

    def attend(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, options: AttentionOptions) -> Tensor:
        arguments: dict[str, Any] = {}
        if options.window is not None:
            arguments["window_size"] = (options.window - 1, options.window - 1)
        if options.scale is not None and "scale" in parameters:
            arguments["scale"] = options.scale
        elif options.scale is not None:  # the first version has a fixed scale
            q = q * (options.scale * q.size(-1) ** 0.5)
        return varlen(q, k, v, ends, ends, longest, longest, **arguments)

    return attend


@cache
def _list_torch_options() -> tuple[str, ...]:
    """The parameters of torch's kernel, which differ between versions; empty without one."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return ()
    kernel = getattr(import_module("torch.nn.attention.varlen"), "varlen_attn", None)
    return () if kernel is None else tuple(inspect.signature(kernel).parameters)
