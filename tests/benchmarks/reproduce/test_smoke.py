"""A row at the paper's settings in miniature: its own commands, flags and batch size, small files and a small encoder.

`python -m benchmarks.reproduce all --scale paper --smoke 1`, with `--datapath` and `--set`, does so for every row.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from benchmarks.reproduce import __main__ as command
from benchmarks.reproduce.plan import Planned, collect_runs
from benchmarks.reproduce.runs import Bindings, ReproductionRun
from benchmarks.reproduce.scales import read_scale
from benchmarks.reproduce.schedule import run_all
from tests.task_files import make_datapath

pytestmark = pytest.mark.slow

# The sizes of a ConveRT from scratch, behind the row's own flags, of which the last counts.
SMALL_CONVERT = "--hidden-size 16 --intermediate-size 32 --attention-limits 2,8 --head-sizes 24,24"


def small(run: ReproductionRun) -> ReproductionRun:
    """The smoke test of a run, of a small ConveRT where it begins with one that has learned nothing."""
    run = run.make_smoke_test()
    steps = [
        replace(step, command=(*step.command, *SMALL_CONVERT.split()))
        if {"train_model", "convert", "--vocabulary"} <= {*step.command}
        else step
        for step in run.steps
    ]
    return replace(run, steps=tuple(steps))


def test_a_row_of_the_paper_learns_and_is_evaluated_and_nothing_is_kept(bert, tmp_path, capsys, forked_commands):
    data = make_datapath(tmp_path / "data")
    words = ["convai2", "--row", "poly-16", "--scale", "paper", "--smoke", "1", "--datapath", str(data)]
    words += ["--set", "processes=1"]
    assert command.main([*words, "--set", f"bert={bert}", "--out", str(tmp_path / "results")]) == 0
    output = capsys.readouterr().out
    assert "convai2-bert-poly-16, seed 0: valid/mrr" in output
    assert not (tmp_path / "results").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "processes"),
    [
        (("vocabulary-wikito", "pretrain-wikito", "convai2-wikito-bi"), 2),  # as it is printed for eight
        (("vocabulary-reddit", "pretrain-reddit", "dstc7-reddit-cross", "wiki-reddit-bi"), 1),
        (("vocabulary", "reddit-scratch-convert", "amazonqa-reddit-convert-convert"), 1),
        (("ubuntu-bert-poly-64-first", "tfidf-reddit", "map-amazonqa"), 1),
    ],
)
def test_runs_of_the_paper_in_miniature(names, processes, bert, tmp_path, capsys, forked_commands):
    """The printed commands, each after those that it needs: one of each task, start, kind and command."""
    data = make_datapath(tmp_path / "data")
    (data / "wikito").mkdir()
    shutil.copy(data / "wiki_article_search/wikipedia_train.txt", data / "wikito/articles.txt")
    scale = read_scale("paper")
    named = {**scale.places, "bert": str(bert), "bert_large": str(bert), "processes": str(processes)}
    runs = collect_runs(replace(scale, places=named))
    planned = [Planned(small(runs[name]), 1) for name in names]
    bindings = Bindings({**named, "data": str(data), "updates": "1"}, runs=tmp_path / "runs")
    code = run_all(planned, scale="paper", bindings=bindings, out=None, deadline=None)
    output = capsys.readouterr()
    assert code == 0, output.err
    assert all(f"{name}, seed 0: " in output.out for name in names)
    trainings = [step.command for plan in planned for step in plan.run.steps if "train_model" in step.command]
    assert all(command[0] == ("torchrun" if processes > 1 else "parlai") for command in trainings)


def test_a_stream_of_reddit_learns_as_the_paper_says():
    command = " ".join(collect_runs(read_scale("paper"))["reddit-scratch-convert"].commands)
    for flags in ("--datatype train:stream", "--quantization-aware true", "--validation-max-exs 10000"):
        assert flags in command
    assert "--datatype test:stream --num-examples 50000" in command


def test_a_batch_that_processes_cannot_share(capsys):
    words = ["convai2", "--row", "poly-16", "--scale", "paper", "--set", "processes=3", "--dry-run"]
    assert command.main(words) == 1
    assert "a batch of 512 cannot be shared by 3 processes" in capsys.readouterr().err


def test_a_row_of_which_nothing_is_run_is_an_error(capsys):
    assert command.main(["convert-3", "--row", "use-map"]) == 1
    assert "convert-3: these rows have no runs at --scale small" in capsys.readouterr().err


def test_what_is_missing_is_said_and_what_needs_it_is_left_out(tmp_path, capsys):
    words = ["convert-6", "--row", "convert", "--scale", "paper", "--datapath", str(tmp_path)]
    words += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "results")]
    assert command.main(words) == 1
    output = capsys.readouterr().out
    assert "reddit/train-*.json" in output
    assert "intents-convert, seed 0: missing" in output
    assert "reddit-scratch-convert, see there" in output
    assert "not public" in output
    assert not (tmp_path / "runs").exists()
