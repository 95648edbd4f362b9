"""PolyAI's conversational datasets: up to ten extra turns, the 1-of-100 evaluation, shards, errors."""

from __future__ import annotations

import json

import pytest

from polyencoder.errors import InputError


def example(number: int, *, turns: int = 3, **fields) -> dict:
    earlier = {f"context/{n}": f"turn {number} minus {n + 1}" for n in range(turns - 1)}
    return {"context": f"turn {number}", **earlier, "response": f"response {number}", "subreddit": "s"} | fields


@pytest.fixture
def save(tmp_path, write):
    def save(name, records, task="reddit"):
        return write(tmp_path / task / name, records)

    return save


@pytest.fixture
def make(make_teacher, tmp_path):
    def make(datatype="train:ordered", task="reddit", **options):
        return make_teacher(f"selection:{task}", datatype=datatype, datapath=str(tmp_path), **options)

    return make


def test_turns_come_oldest_first(save, make):
    save("train-0.json", [example(5)])
    message = make().act()
    assert message["text"] == "turn 5 minus 2\nturn 5 minus 1\nturn 5"
    assert message["labels"] == ["response 5"]
    assert "label_candidates" not in message


def test_ten_extra_turns_of_reddit_one_of_amazon(save, make):
    save("train-0.json", [example(5, turns=14)])
    assert make().act()["text"].split("\n") == [*(f"turn 5 minus {n}" for n in range(10, 0, -1)), "turn 5"]
    save("train-0.json", [example(5, turns=3)], task="amazonqa")
    assert make(task="amazonqa").act()["text"] == "turn 5"


def test_a_turn_is_a_line(save, make):
    save("train-0.json", [{"context": "one\n\ntwo ", "context/0": " three", "response": "four\nfive"}])
    message = make().act()
    assert (message["text"], message["labels"]) == ("three\none two", ["four five"])


@pytest.mark.parametrize("datatype", ["valid", "test", "valid:stream"])
def test_one_of_a_hundred(save, make, messages, datatype):
    save("test-0.json", map(example, range(230)))
    seen = messages(make(datatype))
    assert len(seen) == 200  # what is left over makes no hundred
    for number, message in enumerate(seen):
        group = number // 100 * 100
        assert message["eval_labels"] == [f"response {number}"]
        assert message["label_candidates"] == [f"response {n}" for n in range(group, group + 100)]


def test_shards(save, make, messages, tmp_path):
    save("train-00001-of-00002.json.gz", map(example, range(10, 20)))
    save("train-00000-of-00002.json", map(example, range(10)))
    save("test-00000-of-00001.json", map(example, range(100, 200)))
    in_order = [f"response {n}" for n in range(20)]
    assert [m["labels"][0] for m in messages(make())] == in_order
    assert [m["labels"][0] for m in messages(make("train:ordered:stream"))] == in_order
    for datatype in ("train", "train:stream"):
        teacher = make(datatype)
        assert sorted(teacher.act()["labels"][0] for _ in range(20)) == sorted(in_order)
    part = make(selection_file=str(tmp_path / "reddit/train-00001*"))
    assert part.num_examples() == 10
    both = make(selection_file=f"{tmp_path}/reddit/train-00001*,{tmp_path}/reddit/train-00000*")
    assert both.act()["labels"] == ["response 10"]


def test_validation_files_are_used_where_there_are_some(save, make):
    save("test-0.json", map(example, range(100)))
    assert make("valid").num_examples() == 100
    save("valid-0.json", map(example, range(200)))
    assert make("valid").num_examples() == 200


def test_missing(make, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/reddit: has no valid-.*json or test-"):
        make("valid")


BAD = [
    ('{"context": "a", "respo', "not JSON"),
    ('{"response": "b"}', "has no 'context'; it has 'response'"),
    ('{"context": "a", "context/0": 3, "response": "b"}', "a turn before the last one of the context is int, not a te"),
]


@pytest.mark.parametrize(("line", "problem"), BAD)
def test_bad_line(save, make, messages, line, problem):
    line = line if isinstance(line, bytes) else line.encode()
    good = [json.dumps(example(n)).encode() for n in range(2)]
    path = save("train-0.json", b"\n".join([good[0], line, good[1]]))
    with pytest.raises(InputError, match=f"{path}, line 2: {problem}"):
        messages(make())
    teacher = make(skip_bad_examples=True)
    assert [m["labels"] for m in messages(teacher)] == [["response 0"], ["response 1"]]
    assert teacher.report()["bad_examples"].value() == 1


def test_truncated_gz(save, make, messages):
    path = save("train-0.json.gz", (example(n * n * 7919 % 10_007) for n in range(2000)))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=f"{path}: damaged or cut off .*; line .* is the last whole one"):
        make()
    teacher = make(skip_bad_examples=True)
    assert 500 < len(messages(teacher)) < 1500
    assert teacher.report()["bad_examples"].value() == 1


def test_fewer_than_a_hundred(save, make):
    path = save("test-0.json", map(example, range(99)))
    with pytest.raises(InputError, match=f"{path}: holds no example for -t selection:reddit -dt test"):
        make("test")


# Real data.


def test_real(make_teacher, messages, real_path):
    files = {"selection_file": str(real_path("reddit_sample") / "*.json")}
    seen = messages(make_teacher("selection:reddit", **files))
    assert len(seen) == 1000
    for number, message in enumerate(seen):
        group = seen[number // 100 * 100]
        assert len(message["label_candidates"]) == 100
        assert message["label_candidates"] == group["label_candidates"]
        assert message["label_candidates"][number % 100] == message["eval_labels"][0]
        assert 1 <= len(message["text"].split("\n")) <= 11
    train = messages(make_teacher("selection:reddit", datatype="train:ordered", **files))
    assert [m["labels"] for m in train] == [m["eval_labels"] for m in seen]
    assert seen[0]["text"].split("\n")[0] == "*She giggles at his giggle.* Yay~"
    assert seen[0]["text"].split("\n")[-1].startswith("Cutie. *He")
    assert messages(make_teacher("selection:reddit", datatype="valid:stream", **files)) == seen
