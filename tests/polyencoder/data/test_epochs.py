"""Sources in memory and from files: nothing read before it is needed, honest estimates."""

from __future__ import annotations

import gzip
import json
import random
import string
from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.epochs import Counts, InMemory, Reader, Streamed, estimate_counts, iter_endless
from polyencoder.data.pairs import estimate_pair_counts
from polyencoder.data.readers import iter_lines
from polyencoder.data.seeded_random import SeededRandom
from tests.parameters import mostly_long


def test_memory():
    assert InMemory(iter(["ab", "c"]), size=len).count_items() == (2, 3)
    assert InMemory(["ab", "c"]).count_items() == (2, 2)
    numbers = InMemory(iter(range(20)))
    assert list(numbers.iter_items()) == list(range(20))
    mixed = list(numbers.iter_items(SeededRandom("k")))
    assert sorted(mixed) == list(range(20))
    assert mixed == list(numbers.iter_items(SeededRandom("k"))) != list(numbers.iter_items(SeededRandom("l")))


KINDS = st.sampled_from(["memory", "streamed"])


def make_source(kind: str, count: int, *, buffer: int = 4):
    """The numbers below `count`, of three files where they are streamed."""
    if kind == "memory":
        return InMemory(range(count))
    third = count // 3
    files = {"a": range(third), "b": range(third, 2 * third), "c": range(2 * third, count)}
    return Streamed(lambda name: iter(files[name]), list(files), buffer=buffer, estimate=lambda: Counts(0, 0))


@given(KINDS, st.integers(3, 20), st.integers(1, 3), st.integers(1, 50))
def test_readers_see_each_item_once_in_every_epoch(kind, count, readers, buffer):
    source = make_source(kind, count, buffer=buffer)
    shares = [iter_endless(source, seed=7, reader=Reader(n, readers)) for n in range(readers)]
    for _ in range(3):
        seen = [list(islice(share, len(range(n, count, readers)))) for n, share in enumerate(shares)]
        assert sorted(chain(*seen)) == list(range(count))


@given(KINDS, st.integers(1, 12), st.integers(0, 50), st.integers(1, 3), st.integers(1, 5))
def test_going_on_is_dropping_what_was_seen(kind, count, seen, readers, buffer):
    source = make_source(kind, count, buffer=buffer)
    for number in range(min(readers, count)):
        reader = Reader(number, readers)
        whole = list(islice(iter_endless(source, seed=7, reader=reader), seen + 20))
        assert list(islice(iter_endless(source, seed=7, reader=reader, seen=seen), 20)) == whole[seen:]


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("memory", [3, 0, 1, 7, 8, 5, 6, 4, 2, 1, 2, 5, 4, 7, 6, 3, 8, 0]),
        ("streamed", [4, 0, 3, 2, 1, 6, 8, 7, 5, 0, 2, 3, 4, 7, 1, 5, 6, 8]),
    ],
)
def test_order_is_of_the_seed_and_the_epoch(kind, order):
    """Fixed values: a run that another version has begun goes on in its order."""
    source = make_source(kind, 9)
    assert list(islice(iter_endless(source, seed=7), 18)) == order
    assert list(islice(iter_endless(source, seed=8), 18)) != order


def test_nothing_to_read():
    assert list(iter_endless(InMemory([]), seed=7)) == []
    assert (
        list(iter_endless(InMemory([1]), seed=7, reader=Reader(1, 2), seen=3)) == []
    )  # the other reader has the only one


def test_stream_opens_files_one_after_the_other_in_random_order():
    opened = []

    def read(name):
        opened.append(name)
        return (f"{name}{n}" for n in range(3))

    source = Streamed(read, ["a", "b", "c", "d"], buffer=2, estimate=lambda: Counts(0, 0))
    assert opened == []
    items = source.iter_items()
    next(items)
    assert opened == ["a"]
    assert list(items)[-1] == "d2"
    orders = set()
    for key in "klmnop":
        opened.clear()
        assert len(list(source.iter_items(SeededRandom(key)))) == 12
        orders.add(tuple(opened))
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {("a", "b", "c", "d")}


def test_stream_is_counted_once_and_only_when_asked():
    calls = []
    source = Streamed(lambda name: iter([]), [], buffer=2, estimate=lambda: calls.append(1) or Counts(4, 5))
    list(source.iter_items())
    assert calls == []
    assert source.count_items() == source.count_items() == (4, 5)
    assert calls == [1]


def read_lines(file):
    """An item a line, an example a word."""
    return (line.split() for _, line in iter_lines(file))


def test_few_are_counted_exactly(tmp_path):
    for name, text in {"a": "one two\nthree\n", "b": "four\n" * 5, "empty": ""}.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("a", "empty", "b")]
    assert estimate_counts(read_lines, files) == (7, 8)
    assert estimate_counts(read_lines, []) == (0, 0)


@pytest.mark.slow
@mostly_long("suffix", ["", ".gz"], quick=1)
def test_many_are_estimated_from_the_beginning(tmp_path, suffix):
    rng = random.Random(0)
    files = []
    for number in range(2):
        rows = [
            ["".join(rng.choices(string.ascii_letters, k=rng.randint(2, 40))) for _ in range(3)] for _ in range(60_000)
        ]
        path = tmp_path / f"{number}.txt{suffix}"
        data = "".join(" ".join(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if suffix else data)
        files.append(str(path))
    read = 0

    def counting(file):
        nonlocal read
        for episode in read_lines(file):
            read += 1
            yield episode

    episodes, examples = estimate_counts(counting, files)
    assert examples == pytest.approx(3 * episodes, abs=2)
    assert episodes == pytest.approx(120_000, rel=0.02)
    assert read < 60_000


@pytest.mark.slow
def test_each_kind_of_file_has_a_density_of_its_own(tmp_path):
    """A few read of many small files, beside a compressed one; short records that are read far ahead."""
    rng = random.Random(0)
    rows = [f"{rng.random()} {rng.random()}\n" for _ in range(80_000)]
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("".join(rows[number * 100 :][:100]))
    (tmp_path / "all.txt.gz").write_bytes(gzip.compress("".join(rows).encode()))
    episodes, examples = estimate_counts(read_lines, [str(path) for path in sorted(tmp_path.iterdir())])
    assert episodes == pytest.approx(84_000, rel=0.02)
    assert examples == pytest.approx(2 * episodes, abs=2)
    records = [{"context": "a", "response": f"b {number}"} for number in range(60_000)]
    (tmp_path / "short.json").write_text(json.dumps(records))
    assert estimate_pair_counts([str(tmp_path / "short.json")]).examples == pytest.approx(60_000, rel=0.02)
