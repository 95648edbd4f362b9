"""What is known of a training: facts of ParlAI's files, and nothing that is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyencoder.export.training_run import TrainingRun, read_run

REPORT = {"R20@1": 0.8367, "R20@10": 0.99, "R20@5": 0.95, "hits@1": 0.83, "mrr": 0.9, "loss": 0.5, "exs": 7801}
OVERRIDE = {"task": "selection:convai2", "learningrate": 5e-05, "backbone": "/home/someone/models/minilm"}
OVERRIDE |= {"model_file": "/home/someone/model", "datapath": "/home/someone/data", "init_model": None}


FLAGS = {"backbone": "minilm", "learningrate": 5e-05, "task": "selection:convai2"}
ALL = {**OVERRIDE, "batchsize": 16, "num_epochs": -1, "mutators": None, "verbose": True}
CONVERT = {"hidden_size": 64, "quantization_update": 20}


@pytest.fixture
def model_file(tmp_path) -> Path:
    return tmp_path / "model"


def write(model_file: Path, suffix: str, values) -> None:
    text = values if isinstance(values, str) else json.dumps(values)
    Path(f"{model_file}{suffix}").write_text(text)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"override": OVERRIDE, "batchsize": 16}, FLAGS),
        (ALL, {**FLAGS, "batchsize": 16}),  # which were given is not known
        ({"model": "convert", "history_size": 4, **CONVERT}, CONVERT),
    ],
)
def test_flags(model_file, options, flags):
    write(model_file, ".opt", options)
    assert read_run(model_file).flags == flags


def test_the_last_report_that_was_written_counts(model_file):
    write(model_file, ".valid", f'valid:\n{{"mrr": 0.1}}\n\nvalid:\n{json.dumps(REPORT)}\n\n')
    write(model_file, ".trainstats", {"final_valid_report": {"mrr": 0.2}, "final_test_report": {"mrr": 0.3}})
    assert read_run(model_file).metrics == {
        "valid": {"R20@1": 0.8367, "R20@5": 0.95, "R20@10": 0.99, "MRR": 0.9, "loss": 0.5, "examples": 7801},
        "test": {"MRR": 0.3},
    }


def test_the_best_validation_where_no_final_one_was_made(model_file):
    write(model_file, ".opt", {"validation_metric": "accuracy"})
    reports = [{"accuracy": 0.2, "mrr": 0.4}, {"accuracy": 0.5, "mrr": 0.6}, {"accuracy": 0.4, "mrr": 0.5}]
    write(model_file, ".trainstats", {"valid_reports": reports, "best_valid": 0.5, "final_valid_report": {}})
    write(model_file, ".valid", "valid:\n    accuracy  mrr\n   .5  .6\n")  # a table, as on a terminal
    assert read_run(model_file).metrics == {"valid": {"MRR": 0.6}}


def test_recall_over_several_numbers_of_candidates_is_that_of_all_examples(model_file):
    write(model_file, ".test", json.dumps({"R20@1": 1.0, "R19@1": 0.0, "hits@1": 0.9, "hits@5": 1, "lr": 0}))
    assert read_run(model_file).metrics == {"test": {"hits@1": 0.9, "hits@5": 1}}


@pytest.mark.parametrize("content", ["{", "[1]", "\x00\xff"])
def test_nothing_is_known(model_file, content):
    assert read_run(model_file) == TrainingRun()
    for suffix in (".opt", ".trainstats", ".valid", ".test"):
        Path(f"{model_file}{suffix}").write_bytes(content.encode("latin-1"))
    assert read_run(model_file) == TrainingRun()


def test_how_long_the_model_that_was_kept_was_trained(model_file):
    write(model_file, ".opt", {"validation_metric": "accuracy", "seed": 7})
    reports = [{"accuracy": a, "train_steps": n, "total_exs": 32 * n} for a, n in ((0.2, 10), (0.5, 20), (0.4, 30))]
    write(model_file, ".trainstats", {"valid_reports": reports, "best_valid": 0.5, "train_steps": 35})
    run = read_run(model_file)
    assert (run.updates, run.examples, run.seed) == (20, 640, 7)
    write(model_file, ".trainstats", {"train_steps": 35})  # no validation
    assert (read_run(model_file).updates, read_run(model_file).examples) == (35, None)


def test_what_a_run_of_parlai_started_from(model_file):
    for options, base in (({}, None), ({"backbone": "runs/old"}, None), ({"base_model": "me/old"}, "me/old")):
        write(model_file, ".opt", {"override": {**OVERRIDE, **options}, **options})
        assert read_run(model_file).base_model == base
