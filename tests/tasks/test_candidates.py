"""The candidates of a task: an example's own, or drawn ones, the same in any order and number of processes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parlai.core.metrics import normalize_answer
from parlai.tasks.selection import teacher as teacher_module

from polyencoder.data.negatives import normalize


def test_sampled_candidates_are_of_the_example_and_not_of_the_order(make_teacher, messages, pairs, monkeypatch):
    """An evaluation in three processes, or as a stream, puts the same candidates beside each label."""
    options = pairs(30) | {"eval_candidates": "inline", "num_negatives": 5}

    def candidates(datatype="valid"):
        return {
            m["text"]: m["label_candidates"]
            for m in messages(make_teacher("selection:jsonl", datatype=datatype, **options))
        }

    alone = candidates()
    assert len(alone) == 30
    for text, drawn in alone.items():
        assert len(set(drawn)) == 6
        assert drawn.count(text.replace("question", "answer")) == 1
    assert candidates("valid:stream") == alone
    monkeypatch.setattr(teacher_module, "num_workers", lambda: 3)
    shared: dict = {}
    for number in range(3):
        monkeypatch.setattr(teacher_module, "get_rank", lambda number=number: number)
        shared |= candidates()
    assert shared == alone


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("datatype", ["train", "train:stream", "valid"])
def test_examples_with_candidates_keep_them_beside_those_without(make_teacher, write, tmp_path, datatype, first):
    """Whichever comes first; and those with candidates count as draws, so that a resumed run draws the same."""
    records = [
        {"context": f"question {n}", "response": f"answer {n}"}
        | ({"candidates": [f"answer {n}", f"own {n}"]} if n % 2 == first else {})
        for n in range(20)
    ]
    options = {"selection_file": str(write(tmp_path / "mixed.jsonl", records)), "num_negatives": 3}
    options |= {"candidates": "inline", "eval_candidates": "inline"}

    def seen(count, **more):
        teacher = make_teacher("selection:jsonl", datatype=datatype, **options, **more)
        return [teacher.act() for _ in range(count)]

    messages = seen(20)
    for message in messages:
        number = int(message["text"].split()[1])
        drawn = sorted(message["label_candidates"]) != [f"answer {number}", f"own {number}"]
        assert drawn == (number % 2 != first)
        assert len(set(message["label_candidates"])) == (4 if drawn else 2)
        assert f"answer {number}" in message["label_candidates"]
    if datatype != "valid":
        (tmp_path / "model.trainstats").write_text(json.dumps({"total_epochs": 7 / 20}))
        assert seen(13, model_file=str(tmp_path / "model")) == messages[7:]


def test_a_stream_samples_from_its_beginning(make_teacher, messages, pairs, monkeypatch):
    monkeypatch.setattr(teacher_module, "SAMPLED_FROM", 10)
    options = pairs(40) | {"candidates": "inline", "num_negatives": 6}
    for datatype, known in {"train:ordered:stream": 10, "train:ordered": 40}.items():
        seen = messages(make_teacher("selection:jsonl", datatype=datatype, **options))
        drawn = {text for m in seen for text in m["label_candidates"] if text != m["labels"][0]}
        assert drawn == {f"answer {n}" for n in range(known)}
        assert all(len(set(m["label_candidates"])) == 7 for m in seen)


def test_own_candidates_are_kept(make_teacher, pairs):
    options = pairs(3, candidates=["answer 0", "answer 1", "answer 2"]) | {"eval_candidates": "inline"}
    assert make_teacher("selection:jsonl", **options).act()["label_candidates"] == ["answer 0", "answer 1", "answer 2"]


@given(st.lists(st.sampled_from([*"aAthe'?.-_ \téé\u2013İß", "an", "the", "dog"]), max_size=12).map("".join))
def test_equal_answers_are_equal_to_hits_at_k(text):
    assert normalize(text) == normalize_answer(text)
