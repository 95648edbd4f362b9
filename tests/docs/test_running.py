"""The commands of documents are run for their failures: each of these would have gone unseen."""

from __future__ import annotations

import pytest

from tests.docs.running import Failure, Runner
from tests.docs.snippets import Command

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    """(command) -> what it prints."""
    runner = Runner(tmp_path, {"GREETING": "hello"})
    return lambda *arguments: runner.run(Command(1, arguments))


def test_a_command_runs_in_the_folder_with_the_variables(run, tmp_path):
    assert run("python", "-c", "import os; print(os.getcwd(), os.environ['GREETING'])") == f"{tmp_path} hello\n"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("1 / 0", "exit code 1\n(?s:.*)ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        ("import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()", "a traceback"),
    ],
)
def test_what_python_does(run, code, problem):
    with pytest.raises(Failure, match=problem):
        run("python", "-c", code)


def test_what_the_command_line_says(run):
    assert "convai2_poly" in run("polyencoder", "zoo")
    with pytest.raises(Failure, match="exit code 1\npolyencoder: "):
        run("polyencoder", "zoo", "nothing")


def test_a_perfect_score_is_a_failure(run):
    with pytest.raises(Failure, match=r"reports accuracy 1\.0"):
        run("parlai", "eval_model", "-m", "repeat_label", "-t", "selection:sample")


def test_a_model_that_a_section_before_made_is_not_trained_on(run, tmp_path):
    (tmp_path / "model").touch()
    with pytest.raises(Failure, match="is there already"):
        run("parlai", "train_model", "-m", "biencoder", "-t", "selection:sample", "-mf", "model")


def test_a_program_that_nobody_knows(run):
    with pytest.raises(Failure, match="no way to run 'rm'"):
        run("rm", "-r", "folder")


def test_a_server_that_does_not_start_is_a_failure(run):
    with pytest.raises(Failure, match="does not answer\n(?s:.*)nothing"):
        run("polyencoder", "serve", "--model", "nothing")
