"""The memory of texts: its size, what it forgets, threads."""

from __future__ import annotations

import sys
import threading

import pytest

from polyencoder.text.memory import ENTRY, TextMemory


@pytest.fixture
def memory():
    """A memory of about ten short texts."""
    return TextMemory(lambda value: len(value), limit=10 * (ENTRY + sys.getsizeof("text 1") + 10))


def test_the_oldest_are_forgotten(memory):
    for i in range(1, 10):
        memory.update({f"text {i}": "v" * 10})
    assert len(memory) == 9
    memory.update({"text a": "v" * 10, "text b": "v" * 10})
    assert [i for i in range(1, 10) if memory.get(f"text {i}")] == [7, 8, 9]
    assert memory.get("text b") == "v" * 10
    assert memory.size <= memory.limit


def test_what_is_too_large_is_not_remembered(memory):
    memory.update({"text 1": "v", "text 2": "v" * memory.limit, "t" * memory.limit: "v"})
    assert (memory.get("text 1"), memory.get("text 2"), len(memory)) == ("v", None, 1)


def test_what_is_there_is_not_counted_twice(memory):
    for _ in range(30):
        memory.update({"text 1": "v"})
    assert len(memory) == 1
    assert memory.size == ENTRY + sys.getsizeof("text 1") + 1


def test_threads(memory):
    """The size stays what the values have, whoever changes it meanwhile."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def fill(seed):
        for i in range(2_000):
            memory.update({f"{seed} {i % 37}": "v" * (i % 5)})
            memory.get(f"{1 - seed} {i % 37}")

    threads = [threading.Thread(target=fill, args=(seed,)) for seed in range(6)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert memory.size == sum(size for _, size in memory._values.values()) <= memory.limit
