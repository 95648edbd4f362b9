"""Batches that are made before the model needs them: their order, their errors, and the thread that makes them."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain, islice

import pytest

from polyencoder.data.epochs import Counts, InMemory, Reader, Streamed
from polyencoder.data.example import Example
from polyencoder.data.loader import iter_batches, iterate_batches, prefetch
from polyencoder.data.negatives import NegativeSampler

MIXED = [Example([f"question {n}"], f"answer {n}", [f"answer {n}", f"own {n}"] if n % 3 else None) for n in range(20)]


def mixed_batches(reader: Reader, *, seen: int = 0, count: int = 9):
    sampler = NegativeSampler((example.label for example in MIXED), count=3)
    batches = iterate_batches(InMemory(MIXED), batch_size=4, sampler=sampler, reader=reader, seen=seen)
    return [next(batches) for _ in range(count)]


def test_candidates_are_the_examples_own_or_drawn():
    for example in [example for batch in mixed_batches(Reader()) for example in batch]:
        number = int(example.label.split()[1])
        assert example.candidates is not None
        if number % 3:
            assert list(example.candidates) == [f"answer {number}", f"own {number}"]
        else:
            assert len(set(example.candidates)) == 4
            assert example.label in example.candidates
            assert all(text.startswith("answer") for text in example.candidates)


@pytest.mark.parametrize("reader", [Reader(), Reader(0, 2), Reader(1, 2)])
@pytest.mark.parametrize("batches", [1, 2, 5, 7])
def test_a_run_that_goes_on_draws_what_it_would_have_drawn(reader, batches):
    assert mixed_batches(reader, seen=4 * batches, count=2) == mixed_batches(reader)[batches:][:2]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("reader", [Reader(), Reader(1, 2)])
@pytest.mark.parametrize("done", [1, 3, 4, 9])
def test_a_run_goes_on_with_the_next_example(streams, reader, done):
    """In batches that end in the midst of an epoch, over several epochs."""
    examples = [Example([f"{n}"], f"to {n}") for n in range(25)]
    counts = Counts(len(examples), len(examples))
    source = (
        Streamed(lambda _: iter(examples), ["file"], buffer=3, estimate=lambda: counts)
        if streams
        else InMemory(examples)
    )
    whole = list(islice(iterate_batches(source, batch_size=3, reader=reader), 20))
    assert list(islice(iterate_batches(source, batch_size=3, reader=reader, seen=3 * done), 20 - done)) == whole[done:]
    if reader.count == 1:
        epoch = [example for batch in whole for example in batch][: counts.examples]
        assert sorted(epoch, key=lambda example: example.label) == sorted(examples, key=lambda example: example.label)


def test_several_readers_draw_what_one_does():
    def drawn(reader: Reader, *, size: int) -> list[Example]:
        sampler = NegativeSampler((example.label for example in MIXED), count=3)
        batches = iterate_batches(InMemory(MIXED), batch_size=size, sampler=sampler, reader=reader)
        return sorted(next(batches), key=lambda example: example.label)

    shares = [drawn(Reader(number, 2), size=5) for number in range(2)]
    assert sorted(chain(*shares), key=lambda example: example.label) == drawn(Reader(), size=10)


def test_items_come_in_order_and_errors_where_they_were():
    def items():
        yield from range(5)
        raise ValueError("the sixth")

    got = []
    with pytest.raises(ValueError, match="the sixth"):
        got.extend(prefetch(items()))  # extend keeps what came before the error
    assert got == list(range(5))


@pytest.mark.slow
def test_python_may_end_while_a_batch_is_under_way():
    """A thread that Python's end finds inside torch ends the process with SIGABRT, after all work was done."""
    code = """
import torch
from polyencoder.data.loader import prefetch

def items():
    while True:
        yield torch.randn(1000, 1000) @ torch.randn(1000, 1000)

batches = prefetch(items())
next(batches)
batches.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_lists_of_a_size_that_may_be_larger_than_any_list():
    assert list(iter_batches(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(iter_batches(range(5), 10**30)) == [[0, 1, 2, 3, 4]]
    assert list(iter_batches([], 2)) == []
