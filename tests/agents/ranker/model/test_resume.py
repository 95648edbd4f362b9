"""`parlai train_model`, killed and started again with the same command, and repeated with the same seed."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.ranker.model import killing
from tests.agents.ranker.model.killing import (
    EPISODES,
    TURNS,
    assert_same_run,
    batches,
    finish,
    kill,
    log_of,
    same,
    states,
    wait_for_batches,
    write_conversations,
)
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

KILLS = 4
TINY = "-m polyencoder --embedding-size 16 --ffn-size 32 --n-layers 1 --n-heads 2 --poly-n-codes 2 --n-positions 64 "
TINY += "--dropout 0.2 --dict-maxtokens 300 --text-truncate 32 --label-truncate 8 --warmup-updates 5"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_conversations(folder)
    return folder


def start(model: Path, data: Path, options: str) -> int:
    return killing.start(model, data, f"{TINY} {options}")


METRICS = ("valid_reports", "final_valid_report", "final_test_report")


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> Callable[[str], Path]:
    """(options) -> the model of a run that nobody has killed."""
    models: dict[str, Path] = {}

    def get(options: str) -> Path:
        if options not in models:
            model = tmp_path_factory.mktemp("undisturbed") / "model"
            finish(start(model, data, options), model)
            models[options] = model
        return models[options]

    return get


@pytest.mark.long
def test_a_run_that_is_killed_time_and_again_ends_as_if_it_had_not_been(undisturbed, data, tmp_path):
    """SIGKILLs: some while it starts, most after a few more batches, while it learns, validates and saves."""
    options = "--num-epochs 2 --save-every-n-secs 0.0001"  # after each update, or the last would be of any moment
    expected = undisturbed(options)
    model = tmp_path / "model"
    rng = random.Random(0)
    trained_on = 0
    for number in range(KILLS):
        child = start(model, data, options)
        if number % 4 == 3:
            time.sleep(rng.uniform(0, 0.5))
        else:
            trained_on += rng.randrange(1, 10)
            wait_for_batches(model, trained_on)
            time.sleep(rng.uniform(0, 0.05))
        kill(child)
        trained_on = Path(f"{model}.batches").read_bytes().count(b"\n")
    finish(start(model, data, options), model)

    fitted = batches(model)
    assert sum(map(len, fitted.values())) > len(fitted), "nothing was done twice: no kill has cost anything"
    assert len(fitted) == EPISODES * TURNS * 2 / 4
    for position, [once] in batches(expected).items():
        assert all(again == once for again in fitted[position]), position
    assert_same_run(expected, model, *METRICS)


@pytest.mark.long
def test_a_killed_run_mines_what_a_whole_one_does(undisturbed, data, tmp_path):
    options = "--num-epochs 2 --hard-negatives 2 --hard-negatives-every 5"
    expected, model = undisturbed(options), tmp_path / "model"
    killing.kill_once_trained(model, data, f"{TINY} {options}", 45)
    for position, [once] in batches(expected).items():
        assert all(again == once for again in batches(model)[position]), position
    assert_same_run(expected, model, *METRICS)


def test_resumed_after_a_validation_its_training_reports_are_the_same_too(undisturbed, data, tmp_path):
    options = "--num-epochs 1"
    expected = undisturbed(options)
    model = tmp_path / "model"
    killing.kill_once_trained(model, data, f"{TINY} {options}", 20)  # of 30
    assert_same_run(expected, model, "train_reports", *METRICS)


@pytest.mark.long
def test_the_best_model_is_not_written_over_at_the_end(data, tmp_path):
    """ParlAI's loop forgets on resuming that it has saved one, and evaluates the checkpoint instead."""
    first_is_best = "--validation-metric total_train_updates --validation-metric-mode min"
    options = f"--num-epochs 2 {first_is_best}"
    model = tmp_path / "model"
    child = start(model, data, options)
    wait_for_batches(model, 40)  # of 60
    kill(child)
    best = model.read_bytes()
    finish(start(model, data, options), model)
    assert model.read_bytes() == best
    counters = json.loads(Path(f"{model}.trainstats").read_text())
    assert counters["final_valid_report"]["total_train_updates"] == 7
    assert counters["final_valid_report"]["loss"] == pytest.approx(counters["valid_reports"][0]["loss"])


@mostly_long("schedule", ["reduceonplateau", "linear"], quick=1)
def test_a_run_that_is_over_stays_as_it_is(schedule, data, tmp_path):
    model = tmp_path / "model"
    options = f"--max-train-steps 8 --lr-scheduler {schedule} --update-freq 1 --validation-every-n-epochs -1"
    ends = []
    for batches_asked_for in (8, 9):  # ParlAI's loop knows only after one that the run was over
        finish(start(model, data, options), model)
        counters = json.loads(Path(f"{model}.trainstats").read_text())
        ends.append((states(model)["model"], counters["final_valid_report"]["loss"]))
        assert states(model)["number_training_updates"] == 8
        assert counters["parleys"] == batches_asked_for
    assert same(*ends)


@pytest.mark.long
def test_a_seed_repeats_a_run_and_another_does_not(undisturbed, data, tmp_path):
    options = "--num-epochs 1"
    first = undisturbed(options)
    again, other = tmp_path / "again", tmp_path / "other"
    finish(start(again, data, options), again)
    finish(start(other, data, f"{options} --seed 6"), other)
    assert batches(again) == batches(first)
    assert_same_run(first, again, "train_reports", *METRICS)
    assert batches(other) != batches(first)
    assert not same(states(other)["model"], states(first)["model"])


@pytest.mark.long
def test_training_goes_on_when_a_checkpoint_cannot_be_written(undisturbed, data, tmp_path):
    """No file may become as large as a checkpoint: as on a full disk, without one."""
    options = "--num-epochs 2"
    model = tmp_path / "model"
    child = start(model, data, options)
    wait_for_batches(model, 16)  # a validation, and a checkpoint of it
    whole = Path(f"{model}.checkpoint").read_bytes()
    resource.prlimit(child, resource.RLIMIT_FSIZE, (len(whole) // 2, resource.RLIM_INFINITY))
    os.waitpid(child, 0)
    assert f"{model}.checkpoint could not be written: File too large. Training continues" in log_of(model)
    assert len(batches(model)) == EPISODES * TURNS * 2 / 4
    assert Path(f"{model}.checkpoint").read_bytes() == whole
    finish(start(model, data, options), model)  # there is room again
    assert_same_run(undisturbed(options), model, *METRICS)


@pytest.mark.long
@pytest.mark.parametrize(("damaged", "other"), [("model.checkpoint", "model"), ("model", "model.checkpoint")])
def test_a_file_that_a_disk_has_damaged(damaged, other, data, tmp_path):
    """The error comes before the run, which would need the best model at its end, and what it says to do helps."""
    model, file = tmp_path / "model", tmp_path / damaged
    finish(start(model, data, "--max-train-steps 16"), model)
    os.truncate(file, 5000)
    assert os.waitpid(start(model, data, "--max-train-steps 24"), 0)[1]
    assert f"{file}: damaged" in log_of(model)
    assert f"If it is damaged, delete it: the run then resumes from {tmp_path / other}" in log_of(model)
    file.unlink()
    finish(start(model, data, "--max-train-steps 24"), model)
    assert states(f"{model}.checkpoint")["number_training_updates"] > 16


@pytest.mark.long
def test_counters_that_were_deleted_come_from_the_checkpoint(undisturbed, data, tmp_path):
    options, model = "--num-epochs 2", tmp_path / "model"
    child = start(model, data, options)
    wait_for_batches(model, 40)  # of 60
    kill(child)
    Path(f"{model}.checkpoint.trainstats").unlink()
    finish(start(model, data, options), model)
    assert_same_run(undisturbed(options), model, *METRICS)


@pytest.mark.long
def test_another_models_checkpoint_starts_a_new_run(data, tmp_path):
    """ParlAI takes any file of that name for one to resume from: a run of as many updates would be over."""
    first, second = tmp_path / "first", tmp_path / "second"
    options = "--max-train-steps 16 --lr-scheduler linear"
    finish(start(first, data, options), first)
    finish(start(second, data, f"{options} --init-model {first}.checkpoint"), second)
    counts = [states(f"{path}.checkpoint")["number_training_updates"] for path in (first, second)]
    assert counts[0] == counts[1]
    assert not same(states(f"{second}.checkpoint")["model"], states(f"{first}.checkpoint")["model"])
