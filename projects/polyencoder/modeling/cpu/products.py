"""Linear layers with oneDNN, on processors where MKL is slower.

torch computes float32 matrix products with MKL, which uses AVX2 on processors of other makers than Intel. oneDNN, which
torch uses for other dtypes, uses AVX-512 there and is up to twice as fast. Gradients of weights are left to MKL, which
is faster for products of two transposed matrices.

oneDNN compiles a kernel of about 2 MB for each shape and caches the last 1,024. Batches of texts vary in shape, so that
a process grows by 2 GB (with torch's own bfloat16, too), unless `limit_shape_cache` was called.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyencoder.modeling.tracing import is_traced
from polyencoder.processor import is_intel

MIN_PRODUCTS = 2**22  # multiplications from which oneDNN's overhead is worth it


def limit_shape_cache() -> None:
    """Limits oneDNN's kernel cache to 64 shapes, for a process that reads texts of all lengths.

    Sets an environment variable, which oneDNN reads on first use: torch offers no other way. The commands call this at
    their start; importing the library does not.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def apply_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` with oneDNN, if large, float32 and dense."""
    operands = [tensor for tensor in (input, weight, bias) if tensor is not None]
    if input.numel() * weight.size(0) < MIN_PRODUCTS or any(tensor.dtype != torch.float32 for tensor in operands):
        return F.linear(input, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands):
        return _Linear.apply(input, weight, bias)
    return _multiply(input, weight, bias)


def apply_scaled_linear(input: Tensor, weight: Tensor, bias: Tensor, *, scale: float) -> Tensor:
    """scale * input @ weight^T + bias, [n, in] -> [n, out], without another pass for the scale."""
    if input.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and is_onednn_faster():
        return torch.add(bias, apply_linear(input, weight), alpha=scale)
    return torch.addmm(bias, input, weight.t(), alpha=scale)


class CpuLinear(nn.Linear):
    """`torch.nn.Linear` with `apply_linear` on a CPU; in bfloat16 torch itself uses oneDNN."""

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or is_traced() or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        return apply_linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _multiply(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _multiply(gradient.contiguous(), weight.t(), None) if needs_input else None,
            rows.t() @ input.flatten(0, -2) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def _multiply(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")


@cache
def is_onednn_faster() -> bool:
    """Whether torch would use MKL's AVX2 code on a processor with AVX-512."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or is_intel():
        return False
    return _is_product_right()


@torch.no_grad()
def _is_product_right() -> bool:
    """Whether the operator, which is not public, computes a linear layer in this version of torch."""
    values = torch.arange(1.0, 2 * 3 * 8 + 4 * 8 + 4 + 1).sin().split([2 * 3 * 8, 4 * 8, 4])
    input, weight, bias = values[0].view(2, 3, 8), values[1].view(4, 8), values[2]
    cases = ((input, weight, bias), (input, weight, None), (input[..., :4], weight.t(), None))  # the last as backward
    try:
        pairs = [(_multiply(*case), F.linear(*case)) for case in cases]
        return all(ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5) for ours, theirs in pairs)
    except (AttributeError, RuntimeError, TypeError):
        return False
