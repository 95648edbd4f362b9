"""Free memory goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from polyencoder.cpu.heap import return_free_memory


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no say in it")


def test_holes_are_given_back():
    blocks = [bytearray(60_000) for _ in range(2000)]
    full = resident_mb()
    del blocks[::2]
    return_free_memory()
    assert resident_mb() < full - 40


FREED = """
import torch
from pathlib import Path
from polyencoder.cpu.heap import keep_free_memory, return_free_memory
def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
if {keep}: keep_free_memory()
before = resident_mb()
torch.ones(64 * 2**20)  # 256 MB
kept = resident_mb() - before
return_free_memory()
print(round(kept), round(resident_mb() - before))
"""


@pytest.mark.parametrize("keep", [False, True])
def test_large_blocks_are_kept_until_they_are_given_back(keep):
    """In a process of its own: what is set there stays."""
    done = subprocess.run([sys.executable, "-c", FREED.format(keep=keep)], capture_output=True, text=True, check=True)
    kept, later = map(int, done.stdout.split())
    assert (kept > 200) == keep
    assert later < 50
