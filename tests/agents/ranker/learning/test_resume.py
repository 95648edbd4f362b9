"""`parlai train_model`, killed and started again with the same command, and repeated with the same seed."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import pytest
import torch
from parlai.scripts.train_model import TrainModel

from polyencoder.checkpoint import read_states
from polyencoder.training.trainer import Trainer

KILLS = 20
EPISODES, TURNS = 40, 3
TINY = "--embedding-size 16 --ffn-size 32 --n-layers 1 --n-heads 2 --poly-n-codes 2 --n-positions 64 --dropout 0.2"
COMMAND = f"-t selection:convai2 -m polyencoder {TINY} --dict-maxtokens 300 --text-truncate 32 --label-truncate 8 "
COMMAND += "--eval-candidates batch --seed 5 --batchsize 4 --learningrate 0.01 --warmup-updates 5 --update-freq 2 "
COMMAND += "--validation-every-n-epochs 0.5 --validation-metric loss --validation-cutoff 0 --loglevel error "
COMMAND += "--log-every-n-steps 4"
OF_TIME = {"exps", "ltps", "ctps", "tps", "ups", "train_time"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Conversations of three turns in ConvAI2's files, each utterance another."""
    folder = tmp_path_factory.mktemp("data") / "ConvAI2"
    folder.mkdir()
    for split, episodes in {"train": EPISODES, "valid": 6}.items():
        lines = (
            f"{turn + 1} question {episode} {turn}\tanswer {episode} {turn}\n"
            for episode in range(episodes)
            for turn in range(TURNS)
        )
        (folder / f"{split}_self_original_no_cands.txt").write_text("".join(lines))
    return folder.parent


def start(model: Path, data: Path, options: str) -> int:
    """`parlai train_model` in a process of its own, which has nothing to import any more; its id.

    For each batch it writes a line of what it learns from, and at which place of the run.
    """
    child = os.fork()
    if child:
        return child
    try:
        sys.stdout = sys.stderr = open(f"{model}.log", "a", buffering=1)  # noqa: SIM115, closed with the process
        logging.logger.streamHandler.setStream(sys.stdout)
        step = Trainer.step

        def recorded(self: Any, batch: Any) -> Any:
            place = self.updates.count, self.updates.state_dict()["batches"]
            with open(f"{model}.batches", "a") as file:
                print(json.dumps([place, batch.contexts.ids.tolist(), batch.pool.texts]), file=file)
            return step(self, batch)

        Trainer.step = recorded
        TrainModel.main(*f"{COMMAND} {options} -mf {model} --datapath {data}".split())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def finish(child: int, model: Path) -> None:
    assert os.waitpid(child, 0)[1] == 0, log_of(model)


def log_of(model: Path) -> str:
    return Path(f"{model}.log").read_text()[-3000:]


def batches(model: Path) -> dict[str, list[Any]]:
    """What was learnt from at each place of the run: several times, if it was killed after it."""
    found: dict[str, list[Any]] = {}
    for line in Path(f"{model}.batches").read_text().splitlines():
        place, *learnt = json.loads(line)
        found.setdefault(str(place), []).append(learnt)
    return found


def wait_for_batches(model: Path, count: int) -> None:
    """Until so many batches, or more, have been learnt from, counting those that were repeated."""
    path, end = Path(f"{model}.batches"), time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, log_of(model)
        time.sleep(0.005)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it was over before it was killed"


def states(path: Path | str) -> dict[str, Any]:
    """What a checkpoint says of training: not its name, nor times, nor a warm-up that ParlAI has dropped."""
    found = read_states(path)
    del found["training"]["progress"]["seconds"]
    return {name: value for name, value in found.items() if name not in ("checkpoint", "warmup_scheduler")}


def same(one: Any, other: Any) -> bool:
    """Whether nested containers of tensors and numbers are equal, bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def reports(model: Path, *kinds: str) -> Iterator[dict[str, float]]:
    counters = json.loads(Path(f"{model}.trainstats").read_text())
    for kind in kinds:
        for report in counters[kind] if isinstance(counters[kind], list) else [counters[kind]]:
            yield {name: value for name, value in report.items() if name not in OF_TIME}


def assert_same_run(one: Path, other: Path, *kinds: str) -> None:
    for suffix in ("", ".checkpoint"):
        assert same(states(f"{one}{suffix}"), states(f"{other}{suffix}"))
    for expected, found in zip(reports(one, *kinds), reports(other, *kinds), strict=True):
        assert found == pytest.approx(expected, rel=1e-12)  # the epochs are a sum of parts


METRICS = ("valid_reports", "final_valid_report", "final_test_report")


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> Callable[[str], Path]:
    """(options) -> the model of a run that nobody has killed."""
    made: dict[str, Path] = {}

    def get(options: str) -> Path:
        if options not in made:
            model = tmp_path_factory.mktemp("undisturbed") / "model"
            finish(start(model, data, options), model)
            made[options] = model
        return made[options]

    return get


def test_a_run_that_is_killed_time_and_again_ends_as_if_it_had_not_been(undisturbed, data, tmp_path):
    """Twenty SIGKILLs: some while it starts, most after a few more batches, while it learns, validates and saves."""
    options = "--num-epochs 4 --save-every-n-secs 0.0001"  # after each update, or the last would be of any moment
    expected = undisturbed(options)
    model = tmp_path / "model"
    rng = random.Random(0)
    learnt_from = 0
    for number in range(KILLS):
        child = start(model, data, options)
        if number % 5 == 4:
            time.sleep(rng.uniform(0, 0.5))
        else:
            learnt_from += rng.randrange(1, 7)
            wait_for_batches(model, learnt_from)
            time.sleep(rng.uniform(0, 0.05))
        kill(child)
        learnt_from = Path(f"{model}.batches").read_bytes().count(b"\n")
    finish(start(model, data, options), model)

    learnt = batches(model)
    assert sum(map(len, learnt.values())) > len(learnt), "nothing was done twice: no kill has cost anything"
    assert len(learnt) == EPISODES * TURNS * 4 / 4
    for place, [once] in batches(expected).items():
        assert all(again == once for again in learnt[place]), place
    assert_same_run(expected, model, *METRICS)


def test_resumed_after_a_validation_its_training_reports_are_the_same_too(undisturbed, data, tmp_path):
    options = "--num-epochs 2"
    expected = undisturbed(options)
    model = tmp_path / "model"
    child = start(model, data, options)
    wait_for_batches(model, 40)  # of 60
    kill(child)
    finish(start(model, data, options), model)
    assert_same_run(expected, model, "train_reports", *METRICS)


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


@pytest.mark.parametrize("schedule", ["reduceonplateau", "linear", "cosine"])
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


def test_training_goes_on_when_a_checkpoint_cannot_be_written(undisturbed, data, tmp_path):
    """No file may become as large as a checkpoint: as on a full disk, without one."""
    options = "--num-epochs 2"
    model = tmp_path / "model"
    child = start(model, data, options)
    wait_for_batches(model, 16)  # a validation, and a checkpoint of it
    whole = Path(f"{model}.checkpoint").read_bytes()
    resource.prlimit(child, resource.RLIMIT_FSIZE, (len(whole) // 2, resource.RLIM_INFINITY))
    os.waitpid(child, 0)
    assert f"{model}.checkpoint could not be written: File too large. Training goes on" in log_of(model)
    assert len(batches(model)) == EPISODES * TURNS * 2 / 4
    assert Path(f"{model}.checkpoint").read_bytes() == whole
    finish(start(model, data, options), model)  # there is room again
    assert_same_run(undisturbed(options), model, *METRICS)
