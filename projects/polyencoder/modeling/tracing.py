"""Detects tracing by torch.export, torch.jit or torch.compile."""

from __future__ import annotations

import torch
from torch.jit import is_tracing  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether the model is being traced, and must not have control flow that depends on the data."""
    return torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export() or bool(is_tracing())
