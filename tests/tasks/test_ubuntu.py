"""Ubuntu v2: the official CSV files, turns and utterances, ten candidates, errors; ParlAI's own reader."""

from __future__ import annotations

import gzip
import shutil

import pytest
from parlai.core.opt import Opt
from parlai.tasks.selection import ubuntu
from parlai.tasks.ubuntu.agents import UbuntuTeacher

from polyencoder.errors import ConfigError, InputError
from tests.parameters import mostly_long

TRAIN = ["Context", "Utterance", "Label"]
EVALUATION = ["Context", "Ground Truth Utterance", *(f"Distractor_{n}" for n in range(9))]
CONTEXT = (
    "hi all __eou__ my sound is gone __eou__ __eot__ which card ? __eou__ __eot__ no , __eou__ how ? __eou__ __eot__"
)
TURNS = "hi all my sound is gone\nwhich card ?\nno , how ?"


@pytest.fixture(autouse=True)
def offline(no_network, monkeypatch):
    def build(opt):
        raise RuntimeError("no connection")

    monkeypatch.setattr(ubuntu, "build", build)


@pytest.fixture
def save(tmp_path, write_csv):
    """(split, rows, header=the split's) -> the CSV file below tmp_path."""

    def save(split, rows, header=None):
        header = header or (TRAIN if split == "train" else EVALUATION)
        return write_csv(tmp_path / f"Ubuntu/{split}.csv", header, rows)

    return save


@pytest.fixture
def make(make_teacher, tmp_path):
    def make(datatype="valid", variant="", **options):
        return make_teacher(f"selection:ubuntu{variant}", datatype=datatype, datapath=str(tmp_path), **options)

    return make


def row(answer: str = "run lspci __eou__ and look __eou__") -> list[str]:
    return [CONTEXT, answer, *(f"wrong {n} __eou__" for n in range(9))]


def test_turns_and_candidates(save, make, messages):
    save("valid", [row(), row("none")])
    first, second = messages(make())
    assert first["text"] == TURNS
    assert first["eval_labels"] == ["run lspci and look"]
    assert sorted(first["label_candidates"]) == sorted(["run lspci and look", *(f"wrong {n}" for n in range(9))])
    assert second["eval_labels"] == ["none"]
    assert first["episode_done"]
    assert messages(make("valid:stream")) == [first, second] == messages(make())


def test_right_candidate_stands_anywhere(save, make, messages):
    save("valid", [[f"context {n}", *row()[1:]] for n in range(200)])
    positions = [m["label_candidates"].index("run lspci and look") for m in messages(make())]
    assert set(positions) == set(range(10))
    assert max(positions.count(position) for position in range(10)) < 40


@pytest.mark.parametrize(("right", "wrong"), [("1.0", "0.0"), ("1", "0")])
def test_wrong_rows_of_training_are_left_out(save, make, messages, right, wrong):
    save("train", [[CONTEXT, "yes __eou__", right], [CONTEXT, "no __eou__", wrong], ["other", "maybe", right]])
    teacher = make("train:ordered", ":plain")
    assert teacher.num_examples() == 2
    assert [(m["text"], m["labels"]) for m in messages(teacher)] == [(TURNS, ["yes"]), ("other", ["maybe"])]
    assert "bad_examples" not in teacher.report()


def test_every_turn_is_a_label(save, make, messages):
    """The turns before it are its context, and the right answer is the last label."""
    save("train", [[CONTEXT, "yes __eou__", "1"], [CONTEXT, "no __eou__", "0"], ["other", "maybe", "1"]])
    teacher = make("train:ordered")
    assert teacher.num_examples() == teacher.num_episodes() == 3 + 1
    seen = messages(teacher)
    first, second, third = TURNS.split("\n")
    assert [(m["text"], m["labels"]) for m in seen] == [
        (first, [second]),
        (f"{first}\n{second}", [third]),
        (TURNS, ["yes"]),
        ("other", ["maybe"]),
    ]
    assert all(m["episode_done"] and "label_candidates" not in m for m in seen)


def test_augmentation_is_for_training(save, make, messages):
    save("valid", [row()])
    plain = messages(make())
    assert [m | {"id": plain[0]["id"]} for m in messages(make(variant=":plain"))] == plain


def test_unknown_variant(make):
    with pytest.raises(
        ConfigError, match="selection:ubuntu:big: unknown variant; use selection:ubuntu or selection:ub"
    ):
        make("train", ":big")


def test_a_users_own_task_with_these_files(save, make, messages):
    """ParlAI gives `-t mine` the teacher of a folder of that name, whose class may be a subclass."""
    save("train", [[CONTEXT, "yes __eou__", "1.0"], ["other __eou__", "maybe __eou__", "1.0"]])
    ours = make("train:evalmode")
    mine = ubuntu.UbuntuTeacher(Opt(ours.opt, task="mine"))
    assert [m["text"] for m in messages(mine)] == [m["text"] for m in messages(ours)]


@pytest.mark.parametrize(("variant", "options", "negatives"), [("", {}, 15), (":plain", {"num_negatives": 7}, 7)])
def test_sampled_candidates_in_training(save, make, variant, options, negatives):
    """15 as in the paper unless the flag says otherwise."""
    save("train", [[f"context {n} __eot__ more {n}", f"answer {n} __eou__", "1.0"] for n in range(20)])
    message = make("train", variant, candidates="inline", **options).act()
    assert len(set(message["label_candidates"])) == negatives + 1


BAD = [
    (row()[:5], "line 3: has 5 cells, but the header names 11 columns"),
    (["", *row()[1:]], "line 3: its context is empty"),
    ([CONTEXT, " __eou__ ", *row()[2:]], "line 3: its response is empty"),
]


@pytest.mark.parametrize(("spoilt", "problem"), BAD)
def test_bad_row(save, make, messages, spoilt, problem):
    path = save("valid", [row(), spoilt, row("last")])
    with pytest.raises(InputError, match=f"{path}, {problem}$"):
        messages(make())
    teacher = make(skip_bad_examples=True)
    assert [m["eval_labels"] for m in messages(teacher)] == [["run lspci and look"], ["last"]]
    assert teacher.report()["bad_examples"].value() == 1


def test_bad_label_and_columns(save, make):
    path = save("train", [[CONTEXT, "yes", "1.0"], [CONTEXT, "no", "perhaps"]])
    with pytest.raises(InputError, match=f"{path}, line 3: the label is 'perhaps', neither 0 nor 1"):
        make("train")
    for label in ("nan", "inf", "0.7", "-1"):
        path = save("train", [[CONTEXT, "yes", "1.0"], [CONTEXT, "no", label]])
        with pytest.raises(InputError, match=f"{path}, line 3: the label is '{label}', neither 0 nor 1"):
            make("train")
    path = save("valid", [["a", "b"]], header=["Question", "Ground Truth Utterance"])
    with pytest.raises(InputError, match=f"{path}, line 2: has no column 'Context'; it has 'Question', 'Ground"):
        make()


def test_empty_and_missing(make, tmp_path, write):
    path = write(tmp_path / "Ubuntu/valid.csv", "")
    with pytest.raises(InputError, match=f"{path}: has no header row"):
        make()
    with pytest.raises(InputError, match=f"{tmp_path}/Ubuntu: has none of test.csv .*no connection"):
        make("test")


def without_marks(text: str) -> list[str]:
    """Lines without the full stop that ParlAI puts for `__eou__`, and without spaces."""
    lines = ("".join(line.split()).replace(".", "") for line in text.split("\n"))
    return [line for line in lines if line]


def as_sets(message) -> tuple:
    candidates = sorted(without_marks(text) for text in message["label_candidates"])
    return without_marks(message["text"]), without_marks(message["eval_labels"][0]), candidates


def test_equal_to_parlais_own(make_teacher, messages, datapath):
    for datatype in ("valid", "test"):
        ours = make_teacher("selection:ubuntu", datatype=datatype, datapath=str(datapath))
        theirs = UbuntuTeacher(Opt(ours.opt, task="ubuntu"))
        assert list(map(as_sets, messages(ours))) == list(map(as_sets, messages(theirs)))


# Real data.


@pytest.mark.slow
@mostly_long(("datatype", "count"), [("valid", 1000), ("train:ordered", 30_368), ("test", 1000)], quick=1)
def test_real_counts(make_teacher, messages, real_path, datatype, count):
    teacher = make_teacher("selection:ubuntu:plain", datatype=datatype, datapath=str(real_path("Ubuntu").parent))
    assert (teacher.num_episodes(), teacher.num_examples()) == (count, count)
    seen = messages(teacher)
    assert not any("__eo" in m["text"] for m in seen)
    if datatype == "train:ordered":
        assert seen[0]["text"].startswith("Ontza: gonna try reseting, ill bb in a sec\nOntzA: I cant connect, i need ")
        assert seen[0]["labels"][0].startswith("no idea, you must have the connection parameters, but I think it ")
        return
    assert {len(m["label_candidates"]) for m in seen} == {10}
    if datatype == "valid":
        assert seen[0]["text"].startswith("hey guys... my comp just decided to start using oss instead of alsa... ")
        assert seen[0]["eval_labels"] == ["flucksbawks, you lost me at HTPC"]


@pytest.fixture
def real_copy(real_path, tmp_path):
    """(name) -> a data path whose Ubuntu/test.csv is that real file."""

    def copy(name: str) -> str:
        (tmp_path / "Ubuntu").mkdir()
        shutil.copy(real_path(f"Ubuntu/{name}"), tmp_path / "Ubuntu" / "test.csv")
        (tmp_path / "Ubuntu" / ".built").touch()
        return str(tmp_path)

    return copy


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["test.csv", "official_layout_test_1000.csv"])
def test_real_is_what_parlai_reads(make_teacher, messages, real_copy, name):
    ours = make_teacher("selection:ubuntu", datatype="test", datapath=real_copy(name))
    assert ours.num_examples() == 1000
    theirs = UbuntuTeacher(Opt(ours.opt, task="ubuntu"))
    assert list(map(as_sets, messages(ours))) == list(map(as_sets, messages(theirs)))


@pytest.mark.long
@pytest.mark.slow
def test_real_train_is_the_positive_rows(make_teacher, real_path):
    path = real_path("Ubuntu/train.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        positive = sum(line.rstrip().endswith(",1.0") for line in file)
    teacher = make_teacher("selection:ubuntu:plain", datatype="train:stream", datapath=str(path.parents[1]))
    assert teacher.num_examples() == pytest.approx(positive, rel=0.05)
