"""What continuous integration runs (.ci/run), with a Makefile of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("failing", [None, "venv", "lint", "test"])
def test_a_failure_of_any_command_is_one_and_what_lint_says_comes_last(failing, tmp_path, monkeypatch):
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci")
    (tmp_path / "chromedriver").touch(0o755)  # no browser is installed
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    fails = {failing: "; false"}
    commands = {name: f"@echo {name} is done{fails.get(name, '')}" for name in ("venv", "lint", "test")}
    (tmp_path / "Makefile").write_text("".join(f"{name}:\n\t{command}\n" for name, command in commands.items()))
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert bool(done.returncode) == (failing is not None)
    lines = [line for line in done.stdout.splitlines() if line.endswith("is done")]
    assert lines == [f"{name} is done" for name in (["venv"] if failing == "venv" else ["venv", "test", "lint"])]
