"""Episodes in memory and from files: nothing read before it is needed, honest estimates."""

from __future__ import annotations

import gzip
import json
import random
import string

import pytest

from polyencoder.data.episodes import Counts, InMemory, Streamed, estimated_counts
from polyencoder.data.pairs import pair_counts
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

    episodes, examples = estimated_counts(counting, files)
    assert examples == pytest.approx(3 * episodes, abs=2)
    assert episodes == pytest.approx(120_000, rel=0.02)
    assert read < 60_000


def test_each_kind_of_file_has_a_density_of_its_own(tmp_path):
    """Many small files, of which some are read, beside a compressed one; short records that are read far ahead."""
    rng = random.Random(0)
    rows = [f"{rng.random()} {rng.random()}\n" for _ in range(80_000)]
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("".join(rows[number * 100 :][:100]))
    (tmp_path / "all.txt.gz").write_bytes(gzip.compress("".join(rows).encode()))
    episodes, examples = estimated_counts(read_lines, [str(path) for path in sorted(tmp_path.iterdir())])
    assert episodes == pytest.approx(84_000, rel=0.02)
    assert examples == pytest.approx(2 * episodes, abs=2)
    records = [{"context": "a", "response": f"b {number}"} for number in range(60_000)]
    (tmp_path / "short.json").write_text(json.dumps(records))
    assert pair_counts([str(tmp_path / "short.json")]).examples == pytest.approx(60_000, rel=0.02)
