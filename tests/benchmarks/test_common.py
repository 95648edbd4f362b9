"""Peers of a benchmark in processes of their own."""

from __future__ import annotations

import os
from functools import partial

import pytest

from benchmarks.common import in_its_own_process

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

EVALUATE = partial(partial, eval)  # gives a function of texts, and can be pickled


def test_each_has_a_process_in_which_it_stays():
    pid = "__import__('os').getpid()"
    with (
        in_its_own_process(EVALUATE, threads=1) as first,
        in_its_own_process(EVALUATE, threads=1) as second,
    ):
        pids = {first(pid), second(pid), os.getpid()}
        assert len(pids) == 3
        assert first(pid) in pids
        assert first("__import__('torch').get_num_threads()") == 1


def test_what_fails_there_ends_the_benchmark():
    with (
        pytest.raises(SystemExit, match="a process of this benchmark ended"),
        in_its_own_process(EVALUATE, threads=None) as evaluate,
    ):
        evaluate("1 / 0")
