"""ONNX graphs of rankers: exported, checked, quantized to int8, for onnxruntime.

export_onnx(Ranker.from_pretrained("model"), "folder")
quantize_int8("folder")
Ranker.from_pretrained("folder", backend="onnx-int8")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyencoder.lazy import build_lazy_names

if TYPE_CHECKING:
    from polyencoder.export.onnx.export import export_onnx
    from polyencoder.export.onnx.quantize import quantize_int8

__all__ = ["export_onnx", "quantize_int8"]

_MODULES = {
    "export_onnx": "polyencoder.export.onnx.export",
    "quantize_int8": "polyencoder.export.onnx.quantize",
}

__getattr__, __dir__ = build_lazy_names(__name__, _MODULES)
