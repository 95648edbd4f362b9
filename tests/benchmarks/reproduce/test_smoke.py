"""A row at the paper's settings in miniature: its own commands, flags and batch size, small files and a small encoder.

`python -m benchmarks.reproduce all --scale paper --smoke 1`, with `--datapath` and `--set`, does so for every row.
"""

from __future__ import annotations

from benchmarks.reproduce import __main__ as command
from tests.task_files import make_datapath


def test_a_row_of_the_paper_learns_and_is_evaluated_and_nothing_is_kept(bert, tmp_path, capsys):
    data = make_datapath(tmp_path / "data")
    words = ["convai2", "--row", "poly-16", "--scale", "paper", "--smoke", "1", "--datapath", str(data)]
    assert command.main([*words, "--set", f"bert={bert}", "--out", str(tmp_path / "results")]) == 0
    said = capsys.readouterr().out
    assert "convai2-bert-poly-16, seed 0: valid/mrr" in said
    assert not (tmp_path / "results").exists()


def test_a_row_of_which_nothing_is_run_is_an_error(capsys):
    assert command.main(["convert-3", "--row", "use-map"]) == 1
    assert "convert-3: nothing is run of these rows at --scale small" in capsys.readouterr().err


def test_what_is_missing_is_said_and_what_needs_it_is_left_out(tmp_path, capsys):
    words = [
        "convert-6",
        "--row",
        "convert",
        "--scale",
        "paper",
        "--datapath",
        str(tmp_path),
        "--runs",
        str(tmp_path / "runs"),
    ]
    assert command.main([*words, "--out", str(tmp_path / "results")]) == 1
    said = capsys.readouterr().out
    assert "reddit/train-*.json" in said
    assert "intents-convert, seed 0: missing" in said
    assert "reddit-scratch-convert, see there" in said
    assert "not public" in said
    assert not (tmp_path / "runs").exists()
