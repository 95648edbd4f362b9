from __future__ import annotations

import pytest
import torch

from polyencoder.training import precision
from polyencoder.training.precision import explain_no_bf16_gain


@pytest.mark.parametrize(
    ("line", "gains"),
    [
        ("flags : fpu avx2 avx512_bf16 clzero", True),
        ("flags : fpu avx512f amx_bf16 amx_tile", True),
        ("Features : fp asimd bf16 i8mm", True),
        ("flags : fpu avx2 avx512f avx512_vnni", False),
    ],
)
def test_a_processor_says_what_it_can(monkeypatch, tmp_path, line, gains):
    monkeypatch.setattr(precision, "_measure_bf16_speedup", lambda: 1.9)
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\n")
    monkeypatch.setattr(precision, "_CPUINFO", tmp_path / "cpuinfo")
    reason = explain_no_bf16_gain("cpu")
    assert (reason is None) == gains
    assert gains or "no bfloat16 instructions" in reason


@pytest.mark.parametrize(("line", "measured"), [("avx512_bf16", True), ("avx512_bf16 amx_bf16", False)])
def test_instructions_that_are_slower_than_those_of_float32(monkeypatch, tmp_path, line, measured):
    (tmp_path / "cpuinfo").write_text(f"flags : fpu {line}\n")
    monkeypatch.setattr(precision, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(precision, "_measure_bf16_speedup", lambda: 0.5)
    assert explain_no_bf16_gain("cpu") == (
        "this processor multiplies bfloat16 matrices at 0.5 times the rate of float32 ones" if measured else None
    )


def test_nothing_is_said_of_what_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "_CPUINFO", tmp_path / "none")
    assert explain_no_bf16_gain("cpu") is None


@pytest.mark.parametrize(("capability", "gains"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_has_it_from_compute_capability_8(monkeypatch, capability, gains):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert (explain_no_bf16_gain("cuda") is None) == gains
