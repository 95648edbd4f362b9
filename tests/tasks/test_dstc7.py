"""DSTC7: the official JSON, every utterance as a label, test answers from the TSV, errors; ParlAI's own reader."""

from __future__ import annotations

import gzip
import json

import pytest
from parlai.core.build_data import mark_done
from parlai.core.opt import Opt
from parlai.tasks.dstc7.agents import DSTC7Teacher
from parlai.tasks.selection import dstc7

from polyencoder.errors import ConfigError, InputError
from tests.parameters import mostly_long


@pytest.fixture(autouse=True)
def offline(no_network, monkeypatch):
    def build(opt):
        raise RuntimeError("no connection")

    monkeypatch.setattr(dstc7, "build", build)


@pytest.fixture
def save(tmp_path, write):
    """(dialogues or text or bytes, name="dev") -> the file of a split, below tmp_path."""

    def save(content, name="dev"):
        content = json.dumps(content) if isinstance(content, list) else content
        return write(tmp_path / f"dstc7/ubuntu_{name}_subtask_1.json", content)

    return save


@pytest.fixture
def make(make_teacher, tmp_path):
    """(datatype="valid", variant="", **options) -> the teacher, reading below tmp_path."""

    def make(datatype="valid", variant="", **options):
        return make_teacher(f"selection:dstc7{variant}", datatype=datatype, datapath=str(tmp_path), **options)

    return make


def test_evaluation(save, make, messages, make_dialogue):
    record = make_dialogue(0)
    save([record, make_dialogue(1)])
    first, second = messages(make())
    texts = [message["utterance"] for message in record["messages-so-far"]]
    assert first["text"] == f"participant 1: {texts[0]}\nparticipant 2: {texts[1]}\nparticipant 1: {texts[2]}"
    assert first["eval_labels"] == [record["options-for-correct-answers"][0]["utterance"]]
    assert first["label_candidates"] == [option["utterance"] for option in record["options-for-next"]]
    assert first["episode_done"]
    assert second["text"] != first["text"]


def test_every_utterance_is_a_label(save, make, messages, make_dialogue):
    """The turns before it are its context, and the right answer is the last label (Section 5.1 of the paper)."""
    record = make_dialogue(0, turns=4)
    save([record, make_dialogue(1, turns=1)], name="train")
    teacher = make("train:ordered")
    assert teacher.num_examples() == teacher.num_episodes() == 4 + 1
    seen = messages(teacher)
    texts = [message["utterance"] for message in record["messages-so-far"]]
    answer = record["options-for-correct-answers"][0]["utterance"]
    assert [m["labels"] for m in seen[:4]] == [[texts[1]], [texts[2]], [texts[3]], [answer]]
    lines = [f"participant {1 + n % 2}: {text}" for n, text in enumerate(texts)]
    assert [m["text"] for m in seen[:4]] == ["\n".join(lines[:n]) for n in (1, 2, 3, 4)]
    assert not any("label_candidates" in m for m in seen)
    assert all(m["episode_done"] for m in seen)


def test_plain_training(save, make, messages, make_dialogue):
    save([make_dialogue(n, options=7) for n in range(3)], name="train")
    seen = messages(make("train:ordered", ":plain"))
    assert len(seen) == 3
    assert all(len(m["label_candidates"]) == 7 and m["labels"][0] in m["label_candidates"] for m in seen)
    assert "label_candidates" not in make("train", ":plain", candidates="batch").act()


def test_negatives_for_cross_encoders(save, make, messages, make_dialogue):
    """15 as in the paper unless the flag says otherwise."""
    save([make_dialogue(n) for n in range(10)], name="train")
    assert len(set(make("train", candidates="inline", num_negatives=4).act()["label_candidates"])) == 5
    for message in messages(make("train:ordered", candidates="inline")):
        assert len(set(message["label_candidates"])) == 15 + 1
        assert message["label_candidates"].count(message["labels"][0]) == 1


def test_answers_of_the_test_set(save, make, messages, make_dialogue, tmp_path, write):
    dialogues = [make_dialogue(n) for n in range(3)]
    answers = [record["options-for-correct-answers"][0]["utterance"] for record in dialogues]
    save([make_dialogue(n, answered=False) for n in range(3)], name="test")
    with pytest.raises(InputError, match="has none of ubuntu_responses_subtask_1.tsv"):
        make("test")
    tsv = tmp_path / "dstc7/ubuntu_responses_subtask_1.tsv"
    write(tsv, "".join(f"{n}\tid\t{text}\n" for n, text in reversed(list(enumerate(answers)))))
    assert [m["eval_labels"] for m in messages(make("test"))] == [[text] for text in answers]
    write(tsv, f"0\tid\t{answers[0]}\n1\tid\n")
    with pytest.raises(InputError, match=f"{tsv}, line 2: not `example-id<tab>candidate-id<tab>utterance`"):
        make("test")
    teacher = make("test", skip_bad_examples=True)
    assert len(messages(teacher)) == 1
    assert teacher.report()["bad_examples"].value() == 3  # a line without an answer, and two dialogues


def test_unknown_variant(make):
    with pytest.raises(ConfigError, match="-t selection:dstc7:big: unknown variant; use selection:dstc7 or"):
        make(variant=":big")


def test_missing(make, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/dstc7: has none of ubuntu_dev_subtask_1.json .*no connection"):
        make()


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


BAD = [
    (lambda r: without(r, "messages-so-far"), r"not a dialogue of DSTC7's subtask 1 \(KeyError: 'messages-so-far'\)"),
    (lambda r: r | {"messages-so-far": []}, "has no message before the answer"),
    (
        lambda r: (
            r | {"options-for-correct-answers": [{"utterance": None}], "options-for-next": [{"utterance": "None"}]}
        ),
        "not a dialogue of DSTC7's subtask 1 .TypeError: an utterance is None, not a text",
    ),
    (lambda r: r | {"options-for-correct-answers": []}, "not a dialogue of DSTC7's subtask 1 .IndexError"),
    (lambda r: r | {"options-for-next": r["options-for-next"][:1]}, "the right answer 'the .*' is not"),
]


@pytest.mark.parametrize(("spoil", "problem"), BAD)
def test_bad_dialogue(save, make, messages, make_dialogue, spoil, problem):
    path = save([make_dialogue(0), spoil(make_dialogue(1)), make_dialogue(2)])
    with pytest.raises(InputError, match=f"{path}, example 2: {problem}") as raised:
        messages(make())
    assert "\n" not in str(raised.value)
    teacher = make(skip_bad_examples=True)
    assert len(messages(teacher)) == 2
    assert teacher.report()["bad_examples"].value() == 1


def test_not_the_official_file(save, make):
    path = save("[]")
    for options in ({}, {"skip_bad_examples": True}):
        with pytest.raises(InputError, match=f"{path}: holds no example"):
            make(**options)
    path = save('{"a": 1}')
    with pytest.raises(InputError, match=f"{path}[,:].*not an array"):
        make()


FIELDS = ("text", "eval_labels", "label_candidates")


def comparable(message):
    text, (label,), candidates = (message[field] for field in FIELDS)
    return text.strip(), label, sorted(candidates)


def test_equal_to_parlais_own(make_teacher, messages, datapath):
    """ParlAI shuffles the candidates, and ends the context with a line break."""
    for datatype in ("valid", "test"):
        ours = make_teacher("selection:dstc7", datatype=datatype, datapath=str(datapath))
        theirs = DSTC7Teacher(Opt(ours.opt, task="dstc7"))
        assert list(map(comparable, messages(ours))) == list(map(comparable, messages(theirs)))


# Real data.


@pytest.mark.slow
@mostly_long(
    ("datatype", "variant", "count"),
    [("valid", "", 1000), ("test", "", 1000), ("train:ordered", "", 39_190), ("train:ordered", ":plain", 3000)],
    quick=1,
)
def test_real_counts(make_teacher, messages, real_path, datatype, variant, count):
    datapath = str(real_path("dstc7").parent)
    teacher = make_teacher(f"selection:dstc7{variant}", datatype=datatype, datapath=datapath)
    assert teacher.num_examples() == count
    if not variant and datatype != "valid":
        assert teacher.act()["text"].startswith("participant 1: ")
        return
    for message in messages(teacher):
        (label,) = message.get("labels") or message["eval_labels"]
        assert len(message["label_candidates"]) == 100
        assert label in message["label_candidates"]


@pytest.mark.long
@pytest.mark.slow
def test_real_first_and_last(make_teacher, messages, real_path):
    datapath = str(real_path("dstc7").parent)
    seen = messages(make_teacher("selection:dstc7", datapath=datapath))
    assert seen[0]["text"].startswith("participant 1: Is there a way to purge a package and reinstall it without ")
    assert seen[0]["eval_labels"][0].startswith(
        "that doesn't seem to regenerate the config files though - is there an "
    )
    assert all(line.startswith("participant ") for line in seen[-1]["text"].split("\n"))
    assert messages(make_teacher("selection:dstc7", datapath=datapath, datatype="valid:stream")) == seen
    (test, *_) = messages(make_teacher("selection:dstc7", datapath=datapath, datatype="test"))
    assert test["text"].startswith("participant 1: vee_ yeah, in the bios\n")
    assert test["eval_labels"][0].startswith("danbhfive kewl danbhfive ok both say under there sub menus: ")


@pytest.mark.slow
def test_real_is_what_parlai_reads(make_teacher, messages, real_path, tmp_path, write):
    packed = real_path("dstc7/ubuntu_dev_subtask_1.json.gz")
    write(tmp_path / "dstc7/ubuntu_dev_subtask_1.json", gzip.decompress(packed.read_bytes()))
    mark_done(str(tmp_path / "dstc7"), "2.0")
    ours = make_teacher("selection:dstc7", datapath=str(tmp_path))
    theirs = DSTC7Teacher(Opt(ours.opt, task="dstc7"))
    assert list(map(comparable, messages(ours))) == list(map(comparable, messages(theirs)))
