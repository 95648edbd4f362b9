"""The random source under the tasks: the same everywhere, permutations, and a shuffle of bounded memory."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.seeded_random import SeededRandom, shuffle_buffered


@given(st.integers(0, 60), st.text(max_size=5))
def test_order_is_a_permutation(n, key):
    assert sorted(SeededRandom(key).iter_order(n)) == list(range(n))


def test_dice_give_published_values():
    """Fixed values: another platform or version of Python must not write another data set."""
    rng = SeededRandom("1:valid:0")
    assert [rng.draw_below(1000) for _ in range(5)] == [446, 709, 173, 970, 683]
    assert SeededRandom("1:valid:0").shuffle_buffered("abcdefgh") == list("dfahgbec")


def test_sample_is_uniform():
    counts = Counter(SeededRandom(str(n)).sample("abcd", 1)[0] for n in range(2000))
    assert set(counts) == set("abcd")
    assert min(counts.values()) > 400  # 500 expected, standard deviation 19


@given(st.integers(0, 60), st.integers(1, 70), st.text(max_size=3))
def test_shuffled_is_a_permutation_of_bounded_memory(count, size, key):
    buffered = largest = 0

    def counting():
        nonlocal buffered, largest
        for number in range(count):
            buffered += 1
            largest = max(largest, buffered)
            yield number

    seen = []
    for number in shuffle_buffered(counting(), size=size, rng=SeededRandom(key)):
        buffered -= 1
        seen.append(number)
    assert sorted(seen) == list(range(count))
    assert largest <= size


def test_shuffling_does_not_wait_for_a_full_buffer():
    read = []
    numbers = shuffle_buffered(
        (read.append(number) or number for number in range(1000)), size=500, rng=SeededRandom("k")
    )
    next(numbers)
    assert len(read) == 2
    next(numbers)
    assert len(read) == 4  # two in, one out: the buffer grows while it is used


def test_shuffling_carries_far():
    order = list(shuffle_buffered(range(2000), size=400, rng=SeededRandom("k")))
    moved = [abs(position - number) for position, number in enumerate(order)]
    assert sum(moved) / len(moved) > 200  # half the buffer
    late = order[1000:]
    assert min(late) < 1000 - 300  # some wait for long
