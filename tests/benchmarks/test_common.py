"""Peers of a benchmark in processes of their own, and the memory of a process."""

from __future__ import annotations

import math
import os
import sys
from functools import partial

import numpy as np
import pytest

from benchmarks import common
from benchmarks.common import call_alone, measure_peak_extra_mb, run_in_process

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

EVALUATE = partial(partial, eval)  # gives a function of texts, and can be pickled


def test_each_has_a_process_in_which_it_stays():
    pid = "__import__('os').getpid()"
    with run_in_process(EVALUATE, threads=1) as first, run_in_process(EVALUATE, threads=1) as second:
        pids = {first(pid), second(pid), os.getpid()}
        assert len(pids) == 3
        assert first(pid) in pids
        assert first("__import__('torch').get_num_threads()") == 1


def test_what_fails_there_ends_the_benchmark():
    with pytest.raises(ZeroDivisionError), run_in_process(EVALUATE, threads=None) as evaluate:
        evaluate("1 / 0")
    with pytest.raises(SystemExit, match=r"no package: pip install it"):
        call_alone(sys.exit, "no package: pip install it", threads=None)


@pytest.mark.skipif(not common._CLEAR_REFS.exists(), reason="the kernel's peak cannot be reset")
def test_a_peak_is_of_the_call_alone(tmp_path, monkeypatch):
    def works(megabytes: int):
        done.append(np.ones(megabytes * 2**17).sum())

    done: list[float] = []
    works(60)  # an earlier peak
    assert measure_peak_extra_mb(partial(works, 20), warm_up=False) == pytest.approx(20, abs=8)
    monkeypatch.setattr(common, "_CLEAR_REFS", tmp_path / "none" / "clear_refs")  # as in some sandboxes
    assert math.isnan(measure_peak_extra_mb(partial(works, 20), warm_up=False))
    assert len(done) == 3
