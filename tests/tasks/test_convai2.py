"""ConvAI2: the official format, its variants, sampled candidates, errors; equality with ParlAI's own reader."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from parlai.core.opt import Opt
from parlai.tasks.convai2.agents import SelfOriginalTeacher
from parlai.tasks.selection import convai2

from polyencoder.errors import ConfigError, InputError

WITH_CANDIDATES = """\
1 your persona: i ski.
2 your persona: i have two dogs.
3 hi !\thello , do you ski ?\t\tno .|hello , do you ski ?|what ?
4 yes .\tme too .\t\tbye .|nope .|me too .
1 your persona: i read.
2 good morning\tmorning !\t\tevening !|morning !|night !
"""
WITHOUT = "\n".join("\t".join(line.split("\t")[:2]) for line in WITH_CANDIDATES.splitlines()) + "\n"
TRAIN = "1 your persona: i swim.\n" + "".join(f"{n + 2} question {n} ?\treply {n} .\n" for n in range(30))


@pytest.fixture(autouse=True)
def offline(no_network, monkeypatch):
    """ParlAI's downloader, which would wait and retry, fails at once."""

    def build(opt):
        raise RuntimeError("Connection broken\ntoo many times.")

    monkeypatch.setattr(convai2, "build", build)


@pytest.fixture
def write(tmp_path):
    """(name, text) -> the file, in tmp_path/ConvAI2; gzipped if its name says so."""
    folder = tmp_path / "ConvAI2"
    folder.mkdir()

    def write(name: str, text: str):
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return folder / name

    return write


@pytest.fixture
def make(make_teacher, tmp_path):
    """(variant="", **options) -> the teacher, reading below tmp_path."""

    def make(variant: str = "", **options):
        return make_teacher(f"selection:convai2{variant}", datapath=str(tmp_path), **options)

    return make


@pytest.mark.parametrize("name", ["valid_self_original.txt", "valid_self_original.txt.gz"])
def test_official_format(write, make, messages, name):
    write(name, WITH_CANDIDATES)
    teacher = make()
    assert (teacher.num_episodes(), teacher.num_examples()) == (2, 3)
    first, second, third = messages(teacher)
    assert first["text"] == "your persona: i ski.\nyour persona: i have two dogs.\nhi !"
    assert first["eval_labels"] == ["hello , do you ski ?"]
    assert first["label_candidates"] == ["no .", "hello , do you ski ?", "what ?"]
    assert not first["episode_done"]
    assert second["text"] == "yes ."
    assert second["episode_done"]
    assert third["text"] == "your persona: i read.\ngood morning"


def test_test_split_is_valid(write, make):
    write("valid_self_original.txt", WITH_CANDIDATES)
    assert make(datatype="test").num_examples() == 3


@pytest.mark.parametrize("variant", ["", ":self", ":self_original", ":both", ":none", ":self_revised"])
def test_variants(write, make, variant):
    others = {":both": "both_original", ":none": "none_original", ":self_revised": "self_revised"}
    write(f"train_{others.get(variant, 'self_original')}_no_cands.txt", WITHOUT)
    teacher = make(variant, datatype="train:ordered")
    assert teacher.num_examples() == 3
    assert teacher.getID() == f"selection:convai2{variant}"  # two variants in one run keep their reports apart


def test_unknown_variant(make):
    with pytest.raises(ConfigError, match="-t selection:convai2:his: unknown variant; use one of self, .*both_sides"):
        make(":his")


def test_file_with_candidates_is_preferred(write, make):
    write("valid_self_original_no_cands.txt", TRAIN)
    write("valid_self_original.txt", WITH_CANDIDATES)
    assert make().num_examples() == 3


def test_own_candidates_only_where_they_are_used(write, make):
    write("train_self_original.txt", WITH_CANDIDATES)
    assert "label_candidates" not in make(datatype="train", candidates="batch").act()
    assert len(make(datatype="train", candidates="inline").act()["label_candidates"]) == 3
    assert len(make(datatype="train").act()["label_candidates"]) == 3


def test_sampled_candidates_in_evaluation(write, make, messages):
    write("train_self_original_no_cands.txt", TRAIN)
    write("valid_self_original_no_cands.txt", WITHOUT)
    assert all("label_candidates" not in message for message in messages(make()))  # nobody asked for them
    training_labels = {f"reply {n} ." for n in range(30)}
    for message in messages(make(eval_candidates="inline")):
        (label,) = message["eval_labels"]
        assert len(set(message["label_candidates"])) == 20
        assert set(message["label_candidates"]) - {label} < training_labels
    drawn = [make(eval_candidates="inline", teacher_seed=seed).act()["label_candidates"] for seed in (0.0, 5.0)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 hi\thello\nsecond line\thello\n", "line 2: not `number text`, but 'second line"),
        ("1 hi\thello\n\n2 hi\thello\n", "line 2: not `number text`, but"),
        ("1 hi\t\t\tyes|no\n", "line 1: has no label after its first tab"),
        ("1 hi\thello\t\tno|yes\n", "line 1: the label 'hello' is not among its candidates"),
        ("", "holds no example for -t selection:convai2 -dt valid"),
        ("1 your persona: i ski.\n", "holds no example for -t selection:convai2 -dt valid"),
    ],
)
def test_malformed(write, make, messages, text, problem):
    path = write("valid_self_original.txt", text)
    with pytest.raises(InputError, match=f"valid_self_original.txt.*{problem}") as raised:
        messages(make())
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_bad_lines_are_left_out_and_counted(write, make, messages):
    write("valid_self_original.txt", "").write_bytes(
        b"not a line\n1 hi\thello\n2 caf\xe9\thello\n3 ho\t\n4 he\tyes\t\tno|nope\n5 bye\tbye\n"
    )
    teacher = make(skip_bad_examples=True)
    assert [message["text"] for message in messages(teacher)] == ["hi", "bye"]
    assert teacher.report()["bad_examples"].value() == 4


def test_missing_files_and_no_download(make, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/ConvAI2: has none of valid_self_original.txt"):
        make()


def test_download_is_used(make, monkeypatch):
    def build(opt):
        folder = Path(opt["datapath"], "ConvAI2")
        folder.mkdir()
        (folder / "valid_self_original.txt").write_text(WITH_CANDIDATES, encoding="utf-8")

    monkeypatch.setattr(convai2, "build", build)
    assert make().num_examples() == 3


ONE_SIDE = "1 your persona: i ski.\n2 hi !\thello .\n3 do you ski ?\tyes .\n1 bye\tbye !\n"
OTHER_SIDE = "1 __SILENCE__\thi !\n2 hello .\tdo you ski ?\n"


@pytest.mark.parametrize("datatype", ["train:ordered", "train:stream:ordered"])
def test_both_sides(write, make, messages, datatype):
    """Every utterance of the training dialogues is a label, once, whether the file has the other side or not."""
    path = write("train_self_original_no_cands.txt", ONE_SIDE)
    expected = [("your persona: i ski.\nhi !", "hello ."), ("do you ski ?", "yes ."), ("__SILENCE__", "hi !")]
    expected += [("hello .", "do you ski ?"), ("bye", "bye !"), ("__SILENCE__", "bye")]
    pairs = messages(make(":both_sides", datatype=datatype))
    assert [(message["text"], message["labels"][0]) for message in pairs] == expected
    assert [message["episode_done"] for message in pairs] == [False, True, False, True, True, True]

    first, second = ONE_SIDE.partition("1 bye")[::2]
    persona = "1 your persona: i read.\n" + OTHER_SIDE.replace("2 ", "3 ").replace("1 ", "2 ")
    path.write_text(first + persona + "1 bye" + second, encoding="utf-8")
    pairs = messages(make(":both_sides", datatype=datatype))
    completed = [*expected[:2], ("your persona: i read.\n__SILENCE__", "hi !"), *expected[3:]]
    assert [(message["text"], message["labels"][0]) for message in pairs] == completed


def test_both_sides_are_evaluated_on_the_official_side(write, make, messages):
    write("valid_self_original.txt", WITH_CANDIDATES)
    fields = ("text", "eval_labels", "label_candidates", "episode_done")
    sides, single = messages(make(":both_sides", datatype="valid")), messages(make(datatype="valid"))
    assert [[m[field] for field in fields] for m in sides] == [[m[field] for field in fields] for m in single]


# Real data.


def real(make_teacher, data_path, variant="", **options):
    if not (data_path / "ConvAI2").is_dir():
        pytest.skip("no real data: ../shared/data/ConvAI2 does not exist")
    return make_teacher(f"selection:convai2{variant}", datapath=str(data_path), **options)


@pytest.mark.long
@pytest.mark.slow
def test_real_valid_is_what_parlai_reads(make_teacher, messages, data_path, monkeypatch):
    teacher = real(make_teacher, data_path)
    assert (teacher.num_episodes(), teacher.num_examples()) == (1000, 7801)
    monkeypatch.setattr("parlai.tasks.convai2.agents.build", lambda opt: None)
    parlais = SelfOriginalTeacher(Opt(teacher.opt, task="convai2", datapath=str(data_path)))
    fields = ("text", "eval_labels", "label_candidates", "episode_done")
    for ours, theirs in zip(messages(teacher), messages(parlais), strict=True):
        assert [ours[field] for field in fields] == [theirs[field] for field in fields]
        assert len(ours["label_candidates"]) == 20


@pytest.mark.long
@pytest.mark.slow
def test_real_train(make_teacher, messages, data_path):
    teacher = real(make_teacher, data_path, datatype="train:ordered")
    assert (teacher.num_episodes(), teacher.num_examples()) == (8939, 65719)
    seen = messages(teacher)
    assert seen[0]["text"].startswith("your persona: i like to remodel homes.\nyour persona: i like to go hunting.\n")
    assert seen[0]["text"].endswith(" i'm getting ready to do some cheetah chasing to stay in shape .")
    assert seen[0]["labels"] == ["you must be very fast . hunting is one of my favorite hobbies ."]
    assert seen[-1]["text"] == "let me guess , green is your favorite color too ?"
    assert seen[-1]["labels"] == ["lol yep it is"]
    assert seen[-1]["episode_done"]
    assert not any("label_candidates" in message for message in seen)


@pytest.mark.long
@pytest.mark.slow
def test_real_both_sides(make_teacher, messages, data_path):
    """The texts and labels are those of the file without personas, which has both sides."""
    teacher = real(make_teacher, data_path, ":both_sides", datatype="train:ordered")
    assert (teacher.num_episodes(), teacher.num_examples()) == (17878, 131438)
    seen = messages(teacher)
    without = messages(real(make_teacher, data_path, ":none", datatype="train:ordered"))
    assert [message["labels"] for message in seen] == [message["labels"] for message in without]
    assert [message["text"].rpartition("\n")[2] for message in seen] == [message["text"] for message in without]
