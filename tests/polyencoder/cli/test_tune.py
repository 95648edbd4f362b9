"""`polyencoder tune`: the best trial, and how to train with its settings."""

from __future__ import annotations

import pytest
import yaml

from polyencoder.training.process_group import VARIABLES
from tests.commands import invoke


@pytest.mark.slow
def test_it_names_the_best_trial_and_how_to_train_with_it(run, arguments, pairs):
    flags = [*arguments[1:], "--architecture", "bi", "--max-updates", 2]
    place = flags.index("--n-codes")
    del flags[place : place + 2]
    place = flags.index("--learning-rate")
    del flags[place : place + 2]
    output = run("tune", *flags, "--search", "learning_rate=1e-3,1e-2", "--trials", 5).splitlines()
    measured = [line.split() for line in output if line[:1].isdigit() and ":" not in line]
    assert [len(line) for line in measured] == [7, 7], "trial, four measures and the loss, the searched setting"
    assert measured[0][1] >= measured[1][1]
    best = next(line for line in output if line.startswith("best: trial "))
    assert best.split()[2:5] == [f"{measured[0][0]},", "R20@1", f"{measured[0][1]},"]
    file, _, advice = next(line for line in output if ": written. Next: " in line).partition(": written. Next: ")
    assert advice == f"polyencoder train --config {file} --out FOLDER"
    assert yaml.safe_load((pairs / "out" / "best.yaml").read_text())["learning_rate"] == float(measured[0][-1])
    trained = run(*advice.split()[1:-1], pairs / "again")
    assert f"trained          R20@1 {measured[0][1]}" in trained


def test_it_refuses_in_one_line(monkeypatch):
    flags = ["--train", "a", "--backbone", "b", "--out", "c"]
    refused = invoke("tune", *flags, "--search", "learning_rte=1:2")
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1
    assert "did you mean learning_rate? (flag --search)" in refused.stderr
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    assert "start it without torchrun" in invoke("tune", *flags, "--search", "learning_rate=1:2").stderr
