"""The commands of documents are run for their failures: each of these would have gone unseen."""

from __future__ import annotations

import json

import pytest

from tests.docs.running import Failure, Runner, _printed, _problem
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


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_perfect_score_of_an_evaluation_without_parlai_is_a_failure(run, tmp_path, make_ranker, flags):
    ranker, texts = make_ranker("bi"), ["two dogs .", "a cat .", "i ski ."]
    ranker.save_pretrained(tmp_path / "model")
    best, *others = (match.text for match in ranker.rank("any pets ?", texts))
    for response in (best, others[0]):
        record = {"context": "any pets ?", "response": response, "candidates": texts}
        (tmp_path / f"{texts.index(response)}.jsonl").write_text(json.dumps(record))
    evaluate = ["polyencoder", "evaluate", "--model", "model", *flags, "--data"]
    assert "R3@1" in run(*evaluate, f"{texts.index(others[0])}.jsonl")
    with pytest.raises(Failure, match=r"reports hits@1 1\.0"):
        run(*evaluate, f"{texts.index(best)}.jsonl")


def test_training_without_parlai_that_has_nothing_to_learn_is_a_failure():
    command = Command(1, ("polyencoder", "train", "--train", "x"))
    output = "TF-IDF           R4@1 1.000\nafter 5 updates: R4@1 {}  MRR 0.700  loss {}\ntrained          R4@1 {}"
    assert _problem([*_printed(command, output.format(0.5, 1.2, 0.5))], learns=False) is None
    for values, problem in (
        ((0.5, "0.000", 0.5), "loss 0.0"),
        ((0.5, "nan", 0.5), "loss nan"),
        ((0.5, 1, "1.000"), "1.0"),
    ):
        assert problem in _problem([*_printed(command, output.format(*values))], learns=False)


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
