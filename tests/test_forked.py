"""tests/forked.py: what is forked is to others what a shell would have started."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.usefixtures("forked_commands"), pytest.mark.slow]


def test_processes_have_random_numbers_of_their_own():
    code = "import numpy, random, torch; print(numpy.random.rand(), random.random(), torch.rand(()).item())"
    outputs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)]
    assert all(first != second for first, second in zip(*map(str.split, outputs), strict=True))
    assert [len(output.split()) for output in outputs] == [3, 3]


def test_one_that_is_left_behind_does_not_hold_up_the_end():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert process.poll() is None
        assert process.pid not in [child.pid for child in multiprocessing.active_children()]
    finally:
        process.kill()
    assert process.wait() == -9
