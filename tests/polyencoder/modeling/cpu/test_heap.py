"""Free memory goes back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from polyencoder.modeling.cpu.heap import return_free_memory


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library keeps what is free, or has no say in it")
def test_holes_are_given_back():
    blocks = [bytearray(60_000) for _ in range(2000)]
    full = resident_mb()
    del blocks[::2]
    return_free_memory()
    assert resident_mb() < full - 40
