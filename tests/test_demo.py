"""`make demo` and `make chat`, with a tiny encoder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import demo

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.usefixtures("forked_commands"), pytest.mark.slow]


def test_a_demo_and_the_same_again(tmp_path, backbone_folder, capfd):
    """The second time the bot is there, and only the questions are asked again."""
    arguments = ["--folder", str(tmp_path), "--backbone", str(backbone_folder("bert")), "--updates", "2"]
    answers = []
    for _ in range(2):
        demo.main(arguments)
        output = capfd.readouterr().out
        assert [line.split()[2] for line in output.splitlines() if line.startswith("$ ")] == [
            "train",
            "index",
            "calibrate",
        ]
        answers.append(re.findall(r"^ +(?:\d+%)?  ->  .+$", output, flags=re.MULTILINE))
        assert len(answers[-1]) == len(demo.QUESTIONS)
    assert answers[0] == answers[1]


def test_a_chat_before_the_demo_says_what_to_run(tmp_path):
    with pytest.raises(SystemExit, match="run `make demo` first"):
        demo.main(["--folder", str(tmp_path), "--chat"])


def test_a_step_that_fails_ends_the_demo(tmp_path):
    words = [sys.executable, "-m", "demo", "--folder", str(tmp_path), "--backbone", str(tmp_path / "nothing")]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode != 0
    assert "nothing" in run.stderr
    assert "Traceback" not in run.stderr
    assert "$ polyencoder index" not in run.stdout
