"""What a run shows and leaves behind: the progress line, the record, the curve."""

from __future__ import annotations

import fcntl
import io
import json
import pty
import re
import struct
import sys
import termios

import parlai.utils.logging as logging
import pytest
from parlai.agents.ranker.model import open_data
from parlai.agents.ranker.model.optimization import read_goal
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel
from parlai.tasks.selection.sample import sample_dialogues

from polyencoder.checkpoint import read_states
from polyencoder.errors import ConfigError
from polyencoder.training.callbacks import ProgressLine
from polyencoder.training.callbacks import progress as progress_module
from polyencoder.training.progress import Goal

OPTIONS = {"model": "biencoder", "task": "selection:jsonl", "loglevel": "info", "dict_maxtokens": 300, "batchsize": 4}
OPTIONS |= {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "text_truncate": 16, "n_positions": 32}
OPTIONS |= {"eval_candidates": "batch", "log_every_n_steps": 2, "validation_every_n_epochs": 1.0, "seed": 1}
OPTIONS |= {"validation_cutoff": 2.0}  # a lucky model that has all of the validation right would stop early


# ---- the goal


def test_goals():
    goal = read_goal(Opt(num_epochs=2.5, max_train_steps=-1, max_train_time=100.0), epoch=400)
    assert goal == Goal(examples=1000, updates=None, seconds=100)
    assert read_goal(Opt(num_epochs=-1, max_train_steps=40, max_train_time=-1), epoch=400) == Goal(updates=40)


# ---- a run


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """What ran before in this process may have muted ParlAI's console, or disabled all loggers that there were."""
    monkeypatch.setattr(logging.logger.streamHandler, "level", logging.INFO)
    monkeypatch.setattr(logging.logger, "disabled", False)
    monkeypatch.setattr(logging.logger.manager, "disable", 0)
    logging.logger._cache.clear()


@pytest.fixture
def options(tmp_path):
    for split, count in {"train": 16, "valid": 8, "test": 8}.items():
        lines = (json.dumps({"context": f"question {n}", "response": f"answer {n}"}) + "\n" for n in range(count))
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return OPTIONS | {"selection_folder": str(tmp_path), "model_file": str(tmp_path / "model")}


@pytest.mark.slow
def test_a_run_in_a_terminal_and_resumed_in_a_pipe(options, tmp_path, monkeypatch, drawn_curves):
    """The line is for a terminal, the files for both; TensorBoard takes our metrics."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # lines and columns
    monkeypatch.setattr(progress_module, "EVERY", 0)
    with open(terminal, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        TrainModel.main(**options, num_epochs=2, tensorboard_log=True)
        stderr.flush()
        with open(main, "rb", buffering=0) as screen:
            output = screen.read(65536).decode()
    assert " examples/s, loss " in output
    assert "left" in output
    assert " 50%|" in output
    record = json.loads((tmp_path / "model.run.json").read_text())
    assert [start["updates"] for start in record["starts"]] == [0]
    assert record["seed"] == 1
    assert (tmp_path / "model.png").stat().st_size > 1000
    assert [file for file in (tmp_path / "model.tensorboard").iterdir() if file.stat().st_size]

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    monkeypatch.setattr(logging.logger.streamHandler, "stream", log := io.StringIO())
    (tmp_path / "model.png").unlink()
    TrainModel.main(**options, num_epochs=3)
    assert "examples/s" not in pipe.getvalue()
    assert "\r" not in log.getvalue()
    assert log.getvalue().count("no curve is drawn: the package `matplotlib` is not installed") == 1
    assert not (tmp_path / "model.png").exists()
    assert [start["updates"] for start in json.loads((tmp_path / "model.run.json").read_text())["starts"]] == [0, 4]


@pytest.mark.slow
def test_a_run_says_how_good_it_is_and_what_comes_next(options, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.logger.streamHandler, "stream", log := io.StringIO())
    chosen = {"validation_metric": "R3@1", "eval_candidates": "inline", "num_negatives": 2}
    TrainModel.main(**options | chosen, num_epochs=2.1)
    lines = [line.partition("| ")[2] for line in log.getvalue().splitlines()]
    reports = [line for line in lines if line.startswith("validation after ")]
    assert [line.partition(":")[0] for line in reports] == ["validation after 4 updates", "validation after 8 updates"]
    assert all(re.search(r": R3@1 [\d.]+  MRR [\d.]+  loss [\d.]+$", line) for line in reports)
    assert any(line.startswith("new best R3@1: ") for line in lines)
    model = tmp_path / "model"
    points = read_states(model)["training"]["callbacks"]["curve"]["points"]
    assert {point["among"] for point in points["validation"]} == {3}
    assert {point["among"] for point in points["training"]} == {4}
    best = max(reports, key=lambda line: float(re.search(r"R3@1 ([\d.]+)", line)[1]))
    updates, _, measures = best.removeprefix("validation after ").partition(" updates: ")
    assert lines[-3:] == [
        f"{model}: the model after {updates} updates, {measures}",
        f"talk to it: parlai interactive -mf {model}",
        f"use it without ParlAI: polyencoder export {model} FOLDER",
    ]
    assert json.loads((tmp_path / "model.trainstats").read_text())["best_valid"] is not None


def test_the_next_command_reads_the_task_where_the_run_did(make_agent, tmp_path):
    agent = make_agent("biencoder", model_file=str(tmp_path / "model"), datapath=str(tmp_path / "my data"))
    assert agent.suggest_next_step()[0].endswith(f"interactive -mf {tmp_path}/model --datapath '{tmp_path}/my data'")


@pytest.mark.long
@pytest.mark.slow
def test_the_goal_counts_all_tasks(options, tmp_path, monkeypatch):
    goals = []
    monkeypatch.setattr(open_data, "REHEARSED", 8)
    monkeypatch.setattr(ProgressLine, "has_terminal", lambda: True)
    monkeypatch.setattr(ProgressLine, "after_step", lambda self, run, outcome: goals.append(run.goal.examples))
    both = options | {"task": "selection:jsonl,selection:sample", "label_truncate": 16, "max_train_steps": 8}
    both |= {"validation_every_n_epochs": -1, "validation_max_exs": 8, "short_final_eval": True, "dict_maxexs": 40}
    TrainModel.main(**both, num_epochs=2.0)
    assert goals[-1] == 2 * (16 + sum(len(dialogue.turns) for dialogue in sample_dialogues("train")))


def test_a_metric_that_validation_does_not_give(options):
    with pytest.raises(ConfigError, match="--validation-metric R@1/20: .*; there are accuracy, "):
        TrainModel.main(**options, num_epochs=1.1, validation_metric="R@1/20")
