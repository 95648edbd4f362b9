"""What is read of the processor is what torch finds by its instructions."""

from __future__ import annotations

import os
import platform

import pytest
import torch

from polyencoder import processor
from polyencoder.processor import find_vector_instructions, is_intel


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="needs Linux on x86-64")
def test_the_instructions_that_torch_finds():
    if "ATEN_CPU_CAPABILITY" in os.environ:
        pytest.skip("torch was told what to find")
    instructions = torch.backends.cpu.get_cpu_capability()
    assert find_vector_instructions() == {"AVX512": "AVX512", "AVX2": "AVX2"}.get(instructions)


@pytest.mark.parametrize(
    ("about", "instructions", "intels"),
    [
        ("vendor_id : GenuineIntel\nflags : sse avx2 avx512f avx512cd avx512bw avx512dq avx512vl\n", "AVX512", True),
        ("vendor_id : GenuineIntel\nflags\t\t: sse avx2 fma avx512f avx512cd\n", "AVX2", True),
        ("vendor_id : AuthenticAMD\nflags\t\t: sse avx avx2\n", None, False),
        ("Features : asimd\n", None, False),
    ],
)
def test_what_linux_says(about, instructions, intels, monkeypatch):
    monkeypatch.setattr(processor, "_read_cpuinfo", lambda: about)
    assert find_vector_instructions() == instructions
    assert is_intel() is intels


@pytest.mark.parametrize(("name", "intels"), [("Intel64 Family 6, GenuineIntel", True), ("AMD64, AuthenticAMD", False)])
def test_what_other_systems_say(name, intels, monkeypatch):
    monkeypatch.setattr(processor, "_read_cpuinfo", lambda: "")
    monkeypatch.setattr(platform, "processor", lambda: name)
    assert find_vector_instructions() is None
    assert is_intel() is intels
