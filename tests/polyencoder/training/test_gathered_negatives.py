"""The pool of a joint step: each text once, with the process where it is first."""

from __future__ import annotations

from typing import Any

import pytest

from polyencoder.data.pool import build_batch_pool, build_fixed_pool, build_shared_pool
from polyencoder.training.distributed import Processes
from polyencoder.training.gathered_negatives import GatheredStep, gather_step

pytestmark = pytest.mark.slow


def test_a_process_alone_keeps_its_pool():
    pool = build_shared_pool(["a", "b"], ["b", "a"])
    step = gather_step(pool, 2, processes=Processes(), gather=True, keys=pool.texts)
    assert (step, step.local_texts) == (GatheredStep(pool, 2), ["a", "b"])


def test_a_joint_pool_has_each_text_once_with_its_first_process(in_processes):
    texts = [["a", "b", "a"], ["b", "c"], ["a", "b"], []]

    def run(rank: int) -> Any:
        pool = build_shared_pool(texts[rank], texts[rank])
        step = gather_step(pool, len(texts[rank]), processes=Processes(rank, 4), gather=True, keys=pool.texts)
        return list(step.pool.texts), step.pool.labels.tolist(), step.examples, list(step.local_texts)

    everything, n = ["a", "b", "c"], 7
    assert in_processes(run, count=4) == [
        (everything, [0, 1, 0], n, ["a", "b"]),
        (everything, [1, 2], n, ["c"]),
        (everything, [0, 1], n, []),
        (everything, [], n, []),
    ]


def test_what_an_example_may_not_choose_stays_excluded(in_processes):
    """Labels beside a list: nobody else's candidate, neither here nor in a joint pool."""
    pools = [build_fixed_pool(["a", "b"], {"a": 0, "b": 1}, ["x", "a"], add=True), build_shared_pool(["c", "b"], ["b"])]

    def run(rank: int) -> Any:
        pool = pools[rank]
        step = gather_step(pool, 2, processes=Processes(rank, 2), gather=True, keys=pool.texts)
        mask = step.pool.mask
        return list(step.pool.texts), step.pool.labels.tolist(), None if mask is None else mask.int().tolist()

    texts = ["a", "b", "x", "c"]
    assert in_processes(run) == [(texts, [2, 0], [[1, 1, 1, 1], [1, 1, 0, 1]]), (texts, [1], None)]


def test_labels_as_numbers_stay_those_of_each_example(in_processes):
    numbers = [[{"a": 2, "b": 1}, None], [{"c": 1, "A": 3}]]
    labels = [["a", "d"], ["A"]]

    def run(rank: int) -> Any:
        pool = build_batch_pool("batch", labels=labels[rank], candidates=None, relevance=numbers[rank])
        keys = [text.lower() for text in pool.texts]
        step = gather_step(pool, 1, processes=Processes(rank, 2), gather=True, keys=keys)
        return list(step.pool.texts), step.pool.numbers.tolist()

    everything = ["a", "b", "d", "c"]
    assert in_processes(run) == [(everything, [[2, 1, 0, 0], [0, 0, 1, 0]]), (everything, [[3, 0, 0, 1]])]
