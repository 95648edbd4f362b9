"""Runs of `parlai train_model` in processes of their own, which can be killed; and what they leave, compared."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import pytest
import torch
from parlai.scripts.train_model import TrainModel

from polyencoder.checkpoint import read_states
from polyencoder.training.trainer import Trainer
from tests.processes import import_training

EPISODES, TURNS = 40, 3
LEARNING = "--eval-candidates batch --seed 5 --batchsize 4 --learningrate 0.01 --update-freq 2 --loglevel error "
LEARNING += "--validation-every-n-epochs 0.5 --validation-metric loss --validation-cutoff 0 --log-every-n-steps 4"
"""Flags of every run; each trains on EPISODES conversations."""

OF_TIME = {"exps", "ltps", "ctps", "tps", "ups", "train_time"}


def write_conversations(folder: Path) -> None:
    """Conversations of three turns in ConvAI2's files, each utterance another."""
    folder = folder / "ConvAI2"
    folder.mkdir()
    for split, episodes in {"train": EPISODES, "valid": 6}.items():
        lines = (
            f"{turn + 1} question {episode} {turn}\tanswer {episode} {turn}\n"
            for episode in range(episodes)
            for turn in range(TURNS)
        )
        (folder / f"{split}_self_original_no_cands.txt").write_text("".join(lines))


def start(model: Path, data: Path, options: str, *, learning: str = LEARNING) -> int:
    """`parlai train_model -t selection:convai2` in a process of its own, which has nothing to import any more; its id.

    For each batch it writes a line of what it learns from, and at which place of the run.
    """
    import_training()
    child = os.fork()
    if child:
        return child
    try:
        sys.stdout = sys.stderr = open(f"{model}.log", "a", buffering=1)  # noqa: SIM115, closed with the process
        logging.logger.streamHandler.setStream(sys.stdout)
        step = Trainer.step

        def recorded(self: Any, batch: Any) -> Any:
            position = self.updates.count, self.updates.state_dict()["accumulated"]["batches"]
            with open(f"{model}.batches", "a") as file:
                print(json.dumps([position, batch.contexts.ids.tolist(), batch.pool.texts]), file=file)
            return step(self, batch)

        Trainer.step = recorded
        TrainModel.main(*f"-t selection:convai2 {learning} {options} -mf {model} --datapath {data}".split())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def finish(child: int, model: Path) -> None:
    assert os.waitpid(child, 0)[1] == 0, log_of(model)


def log_of(model: Path) -> str:
    return Path(f"{model}.log").read_text()[-6000:]


def batches(model: Path) -> dict[str, list[Any]]:
    """What each position of the run trained on: several times, if the run was killed after it."""
    fitted_at: dict[str, list[Any]] = {}
    for line in Path(f"{model}.batches").read_text().splitlines():
        position, *fitted = json.loads(line)
        fitted_at.setdefault(str(position), []).append(fitted)
    return fitted_at


def wait_for_batches(model: Path, count: int) -> None:
    """Waits until n or more batches have been trained on, counting repeated ones."""
    path, end = Path(f"{model}.batches"), time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, log_of(model)
        time.sleep(0.005)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it was over before it was killed"


def kill_once_trained(model: Path, data: Path, options: str, *counts: int, learning: str = LEARNING) -> None:
    """Run the command to its end, and kill it whenever one of these totals of batches has been trained on."""
    for count in counts:
        child = start(model, data, options, learning=learning)
        wait_for_batches(model, count)
        kill(child)
    finish(start(model, data, options, learning=learning), model)


def states(path: Path | str) -> dict[str, Any]:
    """The state of training in a checkpoint, but for times.

    ParlAI's counters hold times and sums of parts; `reports` compares them.
    """
    saved = read_states(path)
    del saved["training"]["progress"]["seconds"], saved["training"]["counters"]
    return saved


def same(actual: Any, expected: Any) -> bool:
    """Whether nested containers of tensors and numbers are equal, bit by bit."""
    if isinstance(actual, torch.Tensor):
        return torch.equal(actual, expected)
    if isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(same(value, expected[name]) for name, value in actual.items())
    if isinstance(actual, list | tuple):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return actual == expected


def reports(model: Path, *kinds: str) -> Iterator[dict[str, float]]:
    counters = json.loads(Path(f"{model}.trainstats").read_text())
    for kind in kinds:
        for report in counters[kind] if isinstance(counters[kind], list) else [counters[kind]]:
            yield {name: value for name, value in report.items() if name not in OF_TIME}


def assert_same_run(expected_path: Path, path: Path, *kinds: str) -> None:
    for suffix in ("", ".checkpoint"):
        assert same(states(f"{expected_path}{suffix}"), states(f"{path}{suffix}"))
    for expected, actual in zip(reports(expected_path, *kinds), reports(path, *kinds), strict=True):
        assert actual == pytest.approx(expected, rel=1e-12)  # the epochs are a sum of parts
