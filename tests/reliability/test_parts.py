"""A short form of each part of `python -m tests.reliability`, and a longer one."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys

import pytest

from tests.reliability.__main__ import PARTS
from tests.reliability.world import Budget

SHORT = {
    "nth_call": 15,
    "crash_image": 8,
    "kill9": 5,
    "foreign": 15,
    "oracle": 60,
    "calibration": 4,
    "soak": 60,
    "metamorphic": 20,
}


def check(name: str, folder, budget: Budget) -> None:
    seed = random.SystemRandom().randrange(1 << 24)
    counts = importlib.import_module(f"tests.reliability.{name}").run(seed=seed, budget=budget, folder=folder)
    assert not counts.failures, f"--only {name} --seed {seed}"
    assert counts.trials > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_few_trials(tmp_path, name):
    check(name, tmp_path, Budget(trials=SHORT[name]))


@pytest.mark.long
@pytest.mark.parametrize("name", PARTS)
def test_half_a_minute(tmp_path, name):
    check(name, tmp_path, Budget(seconds=30))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--only", "nothing"], ["--seed", "x"], ["--seconds", "0"]])
def test_a_wrong_command(flags):
    command = [sys.executable, "-m", "tests.reliability", *flags]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert flags[0] in line
