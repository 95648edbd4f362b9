"""Episodes in memory and from files: nothing read before it is needed, honest estimates."""

from __future__ import annotations

import gzip
import random
import string

import pytest

from polyencoder.data.episodes import Counts, InMemory, Streamed, estimated_counts
from polyencoder.data.readers import lines
from polyencoder.data.seeded_random import SeededRandom


def numbered(count: int):
    return ([{"text": str(n)}] for n in range(count))


def texts(episodes) -> list[str]:
    return [episode[0]["text"] for episode in episodes]


def test_memory():
    source = InMemory(iter([[{}, {}], [{}]]))
    assert source.counts() == (2, 3)
    numbers = InMemory(numbered(20))
    assert texts(numbers.episodes(None, share=iter)) == [str(n) for n in range(20)]
    mixed = texts(numbers.episodes(SeededRandom("k"), share=iter))
    assert sorted(mixed) == sorted(map(str, range(20)))
    assert (
        mixed
        == texts(numbers.episodes(SeededRandom("k"), share=iter))
        != texts(numbers.episodes(SeededRandom("l"), share=iter))
    )


def test_stream_opens_files_one_after_the_other_in_random_order():
    opened = []

    def read(name):
        opened.append(name)
        return ([{"text": f"{name}{n}"}] for n in range(3))

    source = Streamed(read, ["a", "b", "c", "d"], buffer=2, estimate=lambda: Counts(0, 0))
    assert opened == []
    episodes = source.episodes(None, share=iter)
    next(episodes)
    assert opened == ["a"]
    assert texts(episodes)[-1] == "d2"
    orders = set()
    for key in "klmnop":
        opened.clear()
        assert len(texts(source.episodes(SeededRandom(key), share=iter))) == 12
        orders.add(tuple(opened))
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {("a", "b", "c", "d")}


def test_stream_is_counted_once_and_only_when_asked():
    asked = []
    source = Streamed(lambda name: iter([]), [], buffer=2, estimate=lambda: asked.append(1) or Counts(4, 5))
    list(source.episodes(None, share=iter))
    assert asked == []
    assert source.counts() == source.counts() == (4, 5)
    assert asked == [1]


def read_lines(file):
    """An episode a line, a message a word."""
    for _, line in lines(file):
        yield [{"text": word} for word in line.split()]


def test_few_are_counted_exactly(tmp_path):
    for name, text in {"a": "one two\nthree\n", "b": "four\n" * 5, "empty": ""}.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("a", "empty", "b")]
    assert estimated_counts(read_lines, files) == (7, 8)
    assert estimated_counts(read_lines, []) == (0, 0)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_many_are_estimated_from_the_beginning(tmp_path, suffix):
    rng = random.Random(0)
    files = []
    for number in range(2):
        rows = [[rng.choice(string.ascii_letters) * rng.randint(2, 40) for _ in range(3)] for _ in range(20_000)]
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

    episodes, examples = estimated_counts(counting, files)
    assert examples == pytest.approx(3 * episodes, abs=2)
    assert episodes == pytest.approx(40_000, rel=0.1)
    assert read < 10_000
