"""Whether a model is being traced into a graph, by torch.export, torch.jit or torch.compile."""

from __future__ import annotations

import torch
from torch.jit import is_tracing  # type: ignore[attr-defined]

__all__ = ["is_traced"]


def is_traced() -> bool:
    """Whether what runs is being written down (compiled, exported), as what it does with sequences of any lengths."""
    return torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export() or bool(is_tracing())
