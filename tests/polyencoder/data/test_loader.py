"""Batches that are made before the model needs them: their order, their errors, and the thread that makes them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from polyencoder.data.loader import prefetched


def test_items_come_in_order_and_errors_where_they_were():
    def items():
        yield from range(5)
        raise ValueError("the sixth")

    got = []
    with pytest.raises(ValueError, match="the sixth"):
        got.extend(prefetched(items()))  # extend keeps what came before the error
    assert got == list(range(5))


def test_python_may_end_while_a_batch_is_under_way():
    """A thread that Python's end finds inside torch ends the process with SIGABRT, after all work was done."""
    code = """
import torch
from polyencoder.data.loader import prefetched

def items():
    while True:
        yield torch.randn(1000, 1000) @ torch.randn(1000, 1000)

batches = prefetched(items())
next(batches)
batches.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
