"""The data of a run: what is trained on, held out, ranked and sampled, in memory and streamed."""

from __future__ import annotations

import json
import os
from itertools import islice

import pytest
from datasets import Dataset, DatasetDict

from polyencoder.data.example import Example
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import InputError
from polyencoder.settings.train import TrainSettings
from polyencoder.training.data import open_data

PAIRS = [{"context": f"do you like number {n} ?", "response": f"i like number {n} ."} for n in range(40)]


@pytest.fixture
def write(tmp_path):
    """(pairs, name="train") -> the path of a JSON lines file of them."""

    def make(pairs, name: str = "train") -> str:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
        return str(path)

    return make


def opened(train: str, valid: str | None = None, **others):
    return open_data(TrainSettings.of({"train": train, "valid": valid, "out": "x", "backbone": "bert", **others}))


def labels(examples) -> list[str]:
    return [example.label for example in examples]


def test_a_tenth_is_held_out_where_there_is_no_validation_data(write):
    data = opened(write(PAIRS))
    responses = [pair["response"] for pair in PAIRS]
    assert labels(data.train) == responses[:36]
    assert labels(data.valid) == responses[36:]  # the last: other dialogues, in files that are ordered
    assert data.size == 36
    assert list(data.responses()) == responses[:36]  # TF-IDF and samples never see what is held out
    assert all(len(example.candidates) == 20 and example.label in example.candidates for example in data.valid)
    others = {text for example in data.valid for text in example.candidates if text != example.label}
    assert not others & {*labels(data.valid)}  # drawn from what is trained on


def test_equal_settings_give_equal_candidates_and_another_seed_others(write):
    first, again, other = (opened(write(PAIRS), seed=seed).valid for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize(("candidates", "is_read", "samples"), [("batch", False, False), ("inline", True, True)])
def test_candidates_of_the_data_are_for_those_who_train_on_them(write, candidates, is_read, samples):
    pairs = [pair | {"candidates": [pair["response"], "no ."]} for pair in PAIRS]
    data = opened(write(pairs), candidates=candidates)
    assert data.train[0].candidates == (["i like number 0 .", "no ."] if is_read else None)
    assert (data.sampler is not None) is samples
    assert all(set(example.candidates) == {example.label, "no ."} for example in data.valid)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda pairs: pairs, True),
        (lambda pairs: [*pairs[1:], pairs[0]], False),
        (lambda pairs: [pairs[0] | {"response": "no ."}, *pairs[1:]], False),
        (lambda pairs: pairs[:-1], False),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_resumed_run_notices_other_data(write, change, same, streaming):
    valid = write(PAIRS[:2], "valid")
    before = opened(write(PAIRS), valid, streaming=streaming).digest
    assert (opened(write(change(PAIRS)), valid, streaming=streaming).digest == before) is same
    other = opened(write(PAIRS), write(PAIRS[2:4], "valid"), streaming=streaming).digest
    assert other != opened(write(PAIRS), write(PAIRS[:2], "valid"), streaming=streaming).digest


def test_a_stream_has_the_examples_that_memory_has(write):
    train, valid = write(PAIRS), write(PAIRS[:2], "valid")
    memory, stream = opened(train, valid), opened(train, valid, streaming=True, shuffle_buffer=8)
    epoch = list(stream.train.iter_items(SeededRandom("a")))
    assert sorted(labels(epoch)) == sorted(labels(memory.train))
    assert labels(epoch) != labels(memory.train)
    assert stream.size == memory.size == 40
    assert list(islice(stream.responses(), 3)) == labels(memory.train)[:3]
    assert stream.valid == memory.valid


def test_bad_records_are_counted_or_an_error(write, caplog):
    bad = [*PAIRS, {"context": "hello"}, {"context": "hello", "response": 3}]
    with pytest.raises(InputError, match=r"line 41: has no 'response'"):
        opened(write(bad))
    data = opened(write(bad), skip_bad_examples=True)
    assert data.bad.count == 2
    assert len(data.train) + len(data.valid) == 40
    assert "2 " in caplog.text


@pytest.mark.parametrize(
    ("train", "valid", "problem"),
    [
        (PAIRS[:1], None, "has 1 training pairs; at least 2 are needed"),
        (PAIRS[:1], PAIRS[:1], "has 1 training pairs; at least 2 are needed"),
        (PAIRS[:2], None, "at least 2 are needed, beside 1 held out for the evaluation"),
        (PAIRS, [], "valid.jsonl: has no pair to evaluate on"),
    ],
)
def test_too_little_data(write, train, valid, problem):
    with pytest.raises(InputError, match=problem):
        opened(write(train), None if valid is None else write(valid, "valid"))


def test_fewer_responses_than_candidates_are_ranked_with_what_there_is(write):
    """As many as there are; a given number is for evaluations, where training draws none."""
    for fields, among in (({}, 8), ({"num_negatives": 3}, 4), ({"num_negatives": 3, "candidates": "inline"}, 4)):
        data = opened(write(PAIRS[:9]), **fields)
        assert {len(example.candidates) for example in data.valid} == {among}
    with pytest.raises(InputError, match="num_negatives is 19, but .* has only 8 labels"):
        opened(write(PAIRS[:9]), candidates="inline")
    assert {len(example.candidates) for example in opened(write(PAIRS), num_negatives=5).valid} == {6}


def test_a_pipe_cannot_be_streamed(tmp_path, write):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match=r"pipe\.jsonl: cannot be read again in each epoch, which streaming needs"):
        opened(str(tmp_path / "pipe.jsonl"), write(PAIRS[:2], "valid"), streaming=True)


@pytest.mark.parametrize("streaming", [False, True])
def test_labels_that_the_objective_cannot_read_are_bad_records(write, streaming):
    graded = [{"context": pair["context"], "candidates": ["a", "b", "c"], "labels": [1, 0, 0]} for pair in PAIRS[:10]]
    graded[5]["labels"], graded[6]["labels"] = [0, 0.5, 1], [0, 2, 0]
    files, fields = (write(graded), write(graded[:3], "valid")), {"streaming": streaming, "objective": "bce"}
    with pytest.raises(InputError, match="train.jsonl, line 7: objective bce reads labels .* one is 2; divide them"):
        opened(*files, **fields, candidates="inline")  # before training, also of a stream
    data = opened(*files, **fields, candidates="inline", num_negatives=1, skip_bad_examples=True)
    assert len(list(items(data.train))) == 9
    assert data.bad.count == 1


def items(source):
    return source.iter_items() if hasattr(source, "iter_items") else source


def test_an_example_in_memory_is_named_by_its_row():
    rows = [Example(["hi"], "a"), Example(["hi"], "b", ["a", "b"], labels={"b": 2})]
    settings = TrainSettings(train="my rows", out="x", backbone="bert", objective="bce")
    with pytest.raises(InputError, match="^my rows, row 2: objective bce"):
        open_data(settings, train=rows, valid=rows)


def test_splits_in_memory(tmp_path):
    rows = [{"context": f"hello {n}", "response": f"hi {n}"} for n in range(12)]
    splits = DatasetDict({"train": Dataset.from_list(rows[:8]), "dev": Dataset.from_list(rows[8:])})
    data = open_data(TrainSettings(train="d", out=str(tmp_path), backbone="b", num_negatives=2), train=splits)
    assert [example.label for example in data.train] == [f"hi {n}" for n in range(8)]
    assert [example.label for example in data.valid] == [f"hi {n}" for n in range(8, 12)]
    with pytest.raises(InputError, match="d: has no split 'train', only 'dev'; pass one of them"):
        open_data(TrainSettings(train="d", out=str(tmp_path), backbone="b"), train={"dev": rows})
