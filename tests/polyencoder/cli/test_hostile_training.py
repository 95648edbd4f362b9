"""Trainings and evaluations that cannot be: one line that says what is wrong, and nothing left behind."""

from __future__ import annotations

import json
import sys

import pytest

from polyencoder.cli.main import main
from tests.polyencoder.cli.commands import CALIBRATE, EVALUATE, TRAIN, instead, with_model

TRAINING = {
    "data that is not there": (instead(TRAIN, "pairs.jsonl", "no.jsonl"), "no such file"),
    "no data": (instead(TRAIN, "pairs.jsonl", "empty.jsonl"), "empty.jsonl: has 0 training pairs"),
    "too little data": (instead(TRAIN, "pairs.jsonl", "one.jsonl"), "one.jsonl: has 1 training pairs"),
    "too little to stream": (
        [*instead(TRAIN, "pairs.jsonl", "one.jsonl"), "--streaming", "--valid", "pairs.jsonl"],
        "one.jsonl: has 1 training pairs",
    ),
    "no data name": (instead(TRAIN, "pairs.jsonl", ""), "needs its training data (train)"),
    "a folder": (instead(TRAIN, "pairs.jsonl", "model"), "is a folder"),
    "another format": (instead(TRAIN, "pairs.jsonl", "notes.txt"), "notes.txt"),
    "no validation data": ([*TRAIN, "--valid", "empty.jsonl"], "empty.jsonl: has no pair to evaluate on"),
    "no such validation data": ([*TRAIN, "--valid", "no.jsonl"], "no such file"),
    "a column": ([*TRAIN, "--context", "question"], "has no 'question'; it has 'context', 'response', 'candidates'"),
    "too few candidates": (
        [*instead(TRAIN, "pairs.jsonl", "plain.jsonl"), "--candidates", "inline", "--num-negatives", "99"],
        "plain.jsonl has only",
    ),
    "nothing to start from": (["train", "--train", "pairs.jsonl", "--out", "out"], "give either backbone"),
    "two to start from": ([*TRAIN, "--backbone", "model"], "give either backbone"),
    "no backbone": (["train", "--train", "pairs.jsonl", "--backbone", "./nothing", "--out", "out"], "nothing"),
    "another architecture": ([*TRAIN, "--architecture", "bi"], "is of the architecture poly, not bi"),
    "no architecture": ([*TRAIN, "--architecture", "tri"], "architecture is 'tri'; it must be one of bi, poly"),
    "no file of settings": ([*TRAIN, "--config", "no.yaml"], "no.yaml: cannot be read"),
    "no settings": ([*TRAIN, "--config", "notes.txt"], "must hold `name: value` lines"),
    "an unknown setting": ([*TRAIN, "--config", "run.yaml"], "run.yaml: unknown setting 'epoch'; did you mean"),
    "a teacher": ([*TRAIN, "--teacher", "./nothing"], "nothing"),
    "a teacher without weight": (
        [*TRAIN, "--teacher", "model", "--distillation-weight", "0"],
        "distillation_weight is 0",
    ),
    "labels without weight": (
        [*TRAIN, "--teacher", "model", "--distillation-weight", "1", "--objective", "bce"],
        "objective is read only where distillation_weight is below 1",
    ),
    "smoothing without weight": (
        [*TRAIN, "--teacher", "model", "--distillation-weight", "1", "--label-smoothing", "0.1"],
        "label_smoothing is read only where distillation_weight is below 1",
    ),
    "vectors of a cross-encoder": (
        [*TRAIN[:3], "--backbone", "b", "--out", "out", "--architecture", "cross", "--normalize"],
        "normalize is read only where architecture is bi",
    ),
    "one process": ([*TRAIN, "--no-gather-negatives"], "gather_negatives"),
    "a backbone's flag": ([*TRAIN, "--reduction", "mean"], "reduction is not read with init"),
    "streaming": ([*TRAIN, "--streaming"], "give validation data (valid)"),
    "a pipe": (
        [*TRAIN[:1], *instead(TRAIN[1:], "pairs.jsonl", "pipe"), "--streaming", "--valid", "pairs.jsonl"],
        "pipe",
    ),
    "hard negatives": (
        [*TRAIN, "--hard-negatives", "2", "--candidates", "batch-all-cands"],
        "join the candidates 'batch'",
    ),
}
NUMBERS = [
    *(f"--{name} {value}" for name in ("epochs", "max-updates", "max-seconds", "evaluations") for value in (0, -1)),
    *(f"--{name} nan" for name in ("epochs", "max-seconds", "evaluations", "learning-rate", "clip", "weight-decay")),
    *(f"--{name} inf" for name in ("learning-rate", "evaluations", "output-scaling", "weight-decay")),
    *("--batch-size 1", "--batch-size 0", "--learning-rate 0", "--clip -1", "--accumulate 0", "--grad-cache -1"),
    *("--pair-tokens -1", "--num-negatives 0", "--patience 0", "--precision float16", "--precision half"),
    *("--warmup-updates 9999", "--warmup-updates -1", "--weight-decay -1", "--max-nonfinite 0", "--shuffle-buffer 0"),
    *("--teacher MODEL --distillation-weight 2", "--teacher MODEL --distillation-temperature 0", "--history-size 0"),
    *("--teacher MODEL --distillation-candidates 1", "--teacher MODEL --distillation-loss l2", "--text-truncate 2"),
    *(
        "--hard-negatives -1",
        "--hard-negatives 2 --hard-negatives-every 0",
        "--hard-negatives 2 --hard-negative-ranks x",
    ),
    *(
        "--text-truncate 99999",
        "--label-truncate 0",
        "--output-scaling nan",
        "--output-scaling x",
        "--output-scaling -1",
    ),
    *("--candidates fixed", "--schedule steps", "--optimizer lion", "--fine-tuned none", "--save-every-seconds nan"),
    *("--seed 99999999999999999999999", "--hard-negatives 2 --max-positive-similarity nan"),
]


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_that_cannot_be(name, refused, place):
    (place / "empty.jsonl").write_text("")
    (place / "one.jsonl").write_text('{"context": "hi", "response": "ho"}\n')
    (place / "run.yaml").write_text("epoch: 3\n")
    plain = [{"context": "hi", "response": f"number {n}"} for n in range(10)]
    (place / "plain.jsonl").write_text("\n".join(map(json.dumps, plain)))
    command, message = TRAINING[name]
    assert message in refused(command)
    assert not (place / "out").exists()


@pytest.mark.parametrize("flags", NUMBERS)
def test_numbers_that_no_training_can_have(flags, refused, place):
    refused([*TRAIN, *flags.split()])
    assert not list((place / "out").rglob("*"))


@pytest.mark.parametrize(("flags", "code"), [(["--epochs", "many"], 1), (["--epoch", "3"], 2)])
def test_flags_that_are_misspelt(flags, code, place, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polyencoder", *with_model(TRAIN, "model"), *flags])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert flags[0] in capsys.readouterr().err
    assert not (place / "out").exists()


EVALUATION = {
    "data that is not there": ([*EVALUATE[:-1], "no.jsonl"], "no such file"),
    "no data": ([*EVALUATE[:-1], "empty.jsonl"], "empty.jsonl: has no example to evaluate on"),
    "a column": ([*EVALUATE, "--response", "answer"], "has no 'answer'"),
    "too few candidates": ([*EVALUATE[:-1], "one.jsonl"], "there is nothing to rank"),
    "no k": ([*EVALUATE, "--hits-at", "x"], "hits_at is 'x'"),
    "no candidates": (
        [*EVALUATE, "--num-negatives", "0"],
        "num_negatives is 0; it must be at least 1 (flag --num-negatives)",
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
def test_an_evaluation_that_cannot_be(name, refused, place):
    (place / "empty.jsonl").write_text("")
    (place / "one.jsonl").write_text('{"context": "hi", "response": "ho"}\n')
    command, message = EVALUATION[name]
    assert message in refused(command)
