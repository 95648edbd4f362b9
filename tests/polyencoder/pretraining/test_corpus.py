"""The corpus as a source: each example once an epoch, shared, gone on with, in constant memory; others are others'."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest

from polyencoder.data.epochs import Reader, iter_endless
from polyencoder.data.readers import BadExamples
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import InputError
from polyencoder.pretraining import corpus as module
from polyencoder.pretraining.corpus import Corpus


@pytest.fixture
def files(tmp_path):
    """Three files of five conversations of four turns."""
    for name in "abc":
        talks = ({"turns": [f"{name}{n} {turn}" for turn in range(4)]} for n in range(5))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    return [str(tmp_path / f"{name}.jsonl") for name in "abc"]


def examples(corpus, key="k", reader=None):
    rng = None if key is None else SeededRandom(key)
    return list(corpus.iter_items(rng, reader=reader or Reader()))


def test_each_example_once_an_epoch_in_another_order(files):
    corpus = Corpus(files, buffer=8)
    expected = Counter(f"{name}{n} {turn}" for name in "abc" for n in range(5) for turn in (1, 2, 3))
    orders = set()
    for key in "klm":
        drawn = examples(corpus, key)
        assert Counter(example.label for example in drawn) == expected
        assert all(example.turns[-1].split()[0] == example.label.split()[0] for example in drawn)
        orders.add(tuple(example.label for example in drawn))
    assert len(orders) == 3
    assert [example.label for example in examples(corpus, None)] == list(expected)
    assert corpus.count_items() == (15, 45)


@pytest.mark.parametrize("window", [8, 20, 1000])
def test_the_other_is_of_another_conversation_and_differs_in_each_epoch(files, window, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", window)
    corpus = Corpus(files)
    drawn = examples(corpus)
    assert all(example.other.split()[0] != example.label.split()[0] for example in drawn)
    assert all(example.other.split()[1] != "0" for example in drawn)  # a first turn follows nothing
    by_key = {example.label: example.other for example in drawn}
    again = {example.label: example.other for example in examples(corpus, "l")}
    assert sum(by_key[label] != again[label] for label in by_key) > 10


def test_a_text_does_not_follow_as_often_as_it_does(tmp_path):
    """Else the frequency of a text would say whether it follows: texts of short conversations are rare."""
    talks = [{"turns": [f"{n} {turn}" for turn in range(2 if n % 2 else 20)]} for n in range(200)]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    drawn = examples(Corpus([str(tmp_path / "talks.jsonl")]))
    shares = [
        sum(int(text.split()[0]) % 2 for text in texts) / len(drawn)
        for texts in zip(*((example.label, example.other) for example in drawn), strict=True)
    ]
    assert shares[0] == pytest.approx(100 / 2_000, rel=1e-9)
    assert shares[1] == pytest.approx(shares[0], rel=0.4)


def test_a_conversation_alone_has_nothing_else(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"turns": ["a", "b", "c"]}\n' * 3)
    assert {example.other for example in examples(Corpus([str(tmp_path / "a.jsonl")]))} <= {None, "b", "c"}
    (tmp_path / "a.jsonl").write_text('{"turns": ["a", "b"]}\n')
    assert [example.other for example in examples(Corpus([str(tmp_path / "a.jsonl")]))] == [None]


@pytest.mark.parametrize("count", [2, 3])
def test_readers_share_what_one_would_have(files, count):
    corpus = Corpus(files, buffer=8)
    alone = examples(corpus)
    for number in range(count):
        assert examples(corpus, reader=Reader(number, count)) == alone[number::count]


def test_reading_goes_on_where_it_stopped(files):
    def take(seen):
        return list(islice(iter_endless(Corpus(files, buffer=8), reader=Reader(1, 2), seed=3, seen=seen), 100 - seen))

    expected = take(0)
    for seen in (1, 22, 23, 50):
        assert take(seen) == expected[seen:]


def test_what_is_held_out_is_not_trained_on(files):
    parts = {part: Corpus(files, part=part, held_out=0.3) for part in ("train", "held out")}
    labels = {part: {example.label for example in examples(corpus, None)} for part, corpus in parts.items()}
    assert labels["train"]
    assert labels["held out"]
    assert not labels["train"] & labels["held out"]
    assert len(labels["train"] | labels["held out"]) == 45
    assert examples(parts["held out"], None) == examples(parts["held out"], None)


def test_bad_lines(files):
    with open(files[1], "a") as file:
        file.write('{"turns": 3}\n')
    with pytest.raises(InputError, match=r"b.jsonl, line 6: 'turns' is neither"):
        examples(Corpus(files))
    bad = BadExamples(skip=True)
    assert len(examples(Corpus(files, bad=bad))) == 45
    assert bad.count == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("forked_commands")
def test_a_corpus_of_50_mb_takes_no_more_memory_than_one_of_10(tmp_path):
    """The peak of a process that reads an epoch of the one, and then of the other: of both a small part is held."""
    line = json.dumps({"turns": ["word" * 1_000 + str(n) for n in range(5)]}) + "\n"
    for megabytes in (10, 50):
        (tmp_path / f"{megabytes}.jsonl").write_text(line * (megabytes * 1_000_000 // len(line)))
    code = """if True:
        import re, sys
        from polyencoder.data.seeded_random import SeededRandom
        from polyencoder.pretraining import corpus
        corpus.WINDOW = 100
        for file in sys.argv[1:]:
            count = sum(1 for _ in corpus.Corpus([file], buffer=100).iter_items(SeededRandom("k")))
            print(count, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    """
    files = [str(tmp_path / f"{megabytes}.jsonl") for megabytes in (10, 50)]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    small, large = (tuple(map(int, row.split())) for row in done.stdout.splitlines())
    assert large[0] == 4 * (50_000_000 // len(line))
    assert large[1] - small[1] < 10_000, "kB"
