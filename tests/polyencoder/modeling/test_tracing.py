"""Tracing is noticed by each of torch's tracers, and at no other time."""

from __future__ import annotations

import torch
from torch import nn

from polyencoder.modeling.tracing import is_traced


class Noting(nn.Module):
    """Adds 1 where it is traced, so that a graph says whether that was noticed."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + (1 if is_traced() else 0)


VALUES = torch.zeros(2)


def test_by_torch_jit():
    module = torch.jit.trace(Noting(), VALUES, check_trace=False)
    assert module(VALUES).tolist() == [1, 1]


def test_by_torch_export():
    program = torch.export.export(Noting(), (VALUES,))
    assert program.module()(VALUES).tolist() == [1, 1]


def test_by_torch_compile():
    assert torch.compile(Noting(), backend="eager")(VALUES).tolist() == [1, 1]


def test_not_otherwise():
    for module in (Noting(), Noting().eval()):
        assert module(VALUES).tolist() == [0, 0]
    with torch.inference_mode():
        assert Noting()(VALUES).tolist() == [0, 0]
