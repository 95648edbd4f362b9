"""Replaces an encoder's linear layers and dropout by faster ones on a CPU."""

from __future__ import annotations

from torch import nn

from polyencoder.modeling.cpu.dropout import CpuDropout
from polyencoder.modeling.cpu.products import CpuLinear, onednn_is_faster


def for_cpu(model: nn.Module) -> None:
    """Replaces linear layers and dropout in `model` by equivalent ones that are faster on a CPU.

    In place and permanently: they share the parameters, under the same names, and behave as torch's on other devices
    and in graphs. Linear layers are replaced on processors on which oneDNN is faster than MKL.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                parent.register_module(name, CpuDropout(child.p, child.inplace).train(child.training))
            elif type(child) is nn.Linear and onednn_is_faster():
                parent.register_module(name, _linear(child))


def _linear(layer: nn.Linear) -> CpuLinear:
    ours = CpuLinear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    ours.weight, ours.bias = layer.weight, layer.bias
    return ours.train(layer.training)
