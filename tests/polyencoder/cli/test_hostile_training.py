"""Trainings and evaluations that cannot be: one line that says what is wrong, and nothing left behind."""

from __future__ import annotations

import json
import sys

import pytest

from polyencoder.cli.main import main
from tests.polyencoder.cli.commands import CALIBRATE, EVALUATE, TRAIN, instead, with_model

pytestmark = pytest.mark.slow


def on(data: str, flags: str = "") -> list[str]:
    return [*instead(TRAIN, "pairs.jsonl", data), *flags.split()]


def with_flags(flags: str) -> list[str]:
    return [*TRAIN, *flags.split()]


NEW = ["train", "--train", "pairs.jsonl", "--out", "out"]
STUDENT = "--teacher model --distillation-weight"
TRAINING = {
    "data that is not there": (on("no.jsonl"), "no such file"),
    "no data": (on("empty.jsonl"), "empty.jsonl: has 0 training pairs"),
    "too little data": (on("one.jsonl"), "one.jsonl: has 1 training pairs"),
    "too little to stream": (on("one.jsonl", "--streaming --valid pairs.jsonl"), "one.jsonl: has 1 training pairs"),
    "no data name": (on(""), "needs its training data (train)"),
    "a folder": (on("model"), "is a folder"),
    "another format": (on("notes.txt"), "notes.txt"),
    "no validation data": (with_flags("--valid empty.jsonl"), "empty.jsonl: has no pair to evaluate on"),
    "no such validation data": (with_flags("--valid no.jsonl"), "no such file"),
    "a column": (with_flags("--context question"), "has no 'question'; it has 'context', 'response', 'candidates'"),
    "too few candidates": (on("plain.jsonl", "--candidates inline --num-negatives 99"), "plain.jsonl has only"),
    "nothing to start from": (NEW, "give either backbone"),
    "two to start from": (with_flags("--backbone model"), "give either backbone"),
    "no backbone": ([*NEW, "--backbone", "./nothing"], "nothing"),
    "another architecture": (with_flags("--architecture bi"), "is of the architecture poly, not bi"),
    "no architecture": (with_flags("--architecture tri"), "architecture is 'tri'; it must be one of bi, poly"),
    "no file of settings": (with_flags("--config no.yaml"), "no.yaml: cannot be read"),
    "a teacher": (with_flags("--teacher ./nothing"), "nothing"),
    "a teacher without weight": (with_flags(f"{STUDENT} 0"), "distillation_weight is 0"),
    "labels without weight": (with_flags(f"{STUDENT} 1 --objective bce"), "objective is read only where distillation_"),
    "smoothing without weight": (
        with_flags(f"{STUDENT} 1 --label-smoothing 0.1"),
        "label_smoothing is read only where",
    ),
    "vectors of a cross-encoder": (
        [*NEW, "--backbone", "b", "--architecture", "cross", "--normalize"],
        "normalize is read",
    ),
    "one process": (with_flags("--no-gather-negatives"), "gather_negatives"),
    "a backbone's flag": (with_flags("--reduction mean"), "reduction is not read with init"),
    "streaming": (with_flags("--streaming"), "give validation data (valid)"),
    "a pipe": (on("pipe", "--streaming --valid pairs.jsonl"), "pipe"),
    "hard negatives": (with_flags("--hard-negatives 2 --candidates batch-all-cands"), "join the candidates 'batch'"),
}
NUMBERS = [
    *([f"--{name} {value}" for value in (0, -1)] for name in ("epochs", "max-updates", "max-seconds", "evaluations")),
    [f"--{name} nan" for name in ("epochs", "max-seconds", "evaluations", "learning-rate", "clip", "weight-decay")],
    [f"--{name} inf" for name in ("learning-rate", "evaluations", "output-scaling", "weight-decay")],
    ["--batch-size 1", "--batch-size 0", "--learning-rate 0", "--clip -1", "--accumulate 0", "--grad-cache -1"],
    ["--pair-tokens -1", "--num-negatives 0", "--patience 0", "--precision float16", "--precision half"],
    ["--warmup-updates 9999", "--warmup-updates -1", "--weight-decay -1", "--max-nonfinite 0", "--shuffle-buffer 0"],
    [f"--teacher MODEL --distillation-{words}" for words in ("weight 2", "temperature 0", "candidates 1", "loss l2")],
    ["--history-size 0", "--text-truncate 2", "--text-truncate 99999", "--label-truncate 0", "--seed " + "9" * 23],
    [f"--hard-negatives {words}" for words in ("-1", "2 --hard-negatives-every 0", "2 --hard-negative-ranks x")],
    ["--output-scaling nan", "--output-scaling x", "--output-scaling -1", "--save-every-seconds nan"],
    ["--candidates fixed", "--schedule steps", "--optimizer lion", "--fine-tuned none"],
    ["--hard-negatives 2 --max-positive-similarity nan"],
]


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_that_cannot_be(name, refused, workdir):
    (workdir / "empty.jsonl").write_text("")
    (workdir / "one.jsonl").write_text('{"context": "hi", "response": "ho"}\n')
    plain = [{"context": "hi", "response": f"number {n}"} for n in range(10)]
    (workdir / "plain.jsonl").write_text("\n".join(map(json.dumps, plain)))
    command, message = TRAINING[name]
    assert message in refused(command)
    assert not (workdir / "out").exists()


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda numbers: numbers[0])
def test_numbers_that_no_training_can_have(numbers, refused, workdir):
    for flags in numbers:
        refused([*TRAIN, *flags.split()])
        assert not list((workdir / "out").rglob("*"))


@pytest.mark.parametrize(("flags", "code"), [(["--epochs", "many"], 1), (["--epoch", "3"], 2)])
def test_flags_that_are_misspelt(flags, code, workdir, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(TRAIN, "model"), *flags])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert flags[0] in capsys.readouterr().err
    assert not (workdir / "out").exists()


EVALUATION = {
    "data that is not there": ([*EVALUATE[:-1], "no.jsonl"], "no such file"),
    "no data": ([*EVALUATE[:-1], "empty.jsonl"], "empty.jsonl: has no example to evaluate on"),
    "a column": ([*EVALUATE, "--response", "answer"], "has no 'answer'"),
    "too few candidates": ([*EVALUATE[:-1], "one.jsonl"], "there is nothing to rank"),
    "no k": ([*EVALUATE, "--hits-at", "x"], "hits_at is 'x'"),
    "no candidates": (
        [*EVALUATE, "--num-negatives", "0"],
        "must be at least 1 (flag --num-negatives)",
    ),
    **{
        f"{command[0]}: {flag} where candidates are there": (
            [*command, f"--{flag}", value],
            f"{flag.replace('-', '_')}: every example has candidates of its own; leave it out (flag --{flag})",
        )
        for command in (EVALUATE, CALIBRATE)
        for flag, value in (("num-negatives", "19"), ("negatives", "one.jsonl"))
    },
}


@pytest.mark.parametrize("name", EVALUATION)
def test_an_evaluation_that_cannot_be(name, refused, workdir):
    (workdir / "empty.jsonl").write_text("")
    (workdir / "one.jsonl").write_text('{"context": "hi", "response": "ho"}\n')
    command, message = EVALUATION[name]
    assert message in refused(command)
