"""Training and evaluation in two processes, joined as torchrun joins them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from parlai.agents.ranker.group import VARIABLES, Place
from parlai.agents.ranker.launch import launch
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import ConfigError

ANIMALS = ["cat", "dog", "cow", "hen", "pig", "bee", "owl", "fox", "ant", "elk", "emu", "rat"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a task of pairs, in which every label is that of two examples."""
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "valid", "test"):
        lines = [
            json.dumps({"context": f"{words} {animal} " * (1 + n), "response": f"my {animal} is here ."})
            for n, animal in enumerate(ANIMALS)
            for words in ("where is the", "i look for a")
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"task": "selection:jsonl", "selection_folder": str(folder), "num_negatives": 5}


@pytest.fixture
def options(pairs, make_agent, tmp_path) -> dict[str, Any]:
    """Of a run of four epochs that starts from the same weights each time, and notes the loss of every step."""
    start = tmp_path / "start"
    make_agent("polyencoder", n_positions=64).save(str(start))
    learning = {"optimizer": "adam", "learningrate": 1e-3, "warmup_updates": -1, "seed": 3}
    learning |= {
        "text_truncate": 48,
        "poly_n_codes": 4,
        "label_truncate": 16,
        "num_epochs": 4.0,
        "log_every_n_steps": 1,
        "validation_every_n_epochs": 2.0,
    }
    learning |= {"validation_metric": "loss", "validation_cutoff": 0.0, "eval_batchsize": 5, "dict_maxtokens": 400}
    return {**pairs, **learning, "model": "polyencoder", "candidates": "batch", "init_model": str(start)}


@contextmanager
def free_port() -> Iterator[str]:
    """A port that no other process is given meanwhile: bound here, but not listened at, so that torch may do that."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("localhost", 0))
        yield str(holder.getsockname()[1])


def arguments(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def launched() -> Callable[..., list[Any]]:
    """(command, flags of each process) -> what each process gives, or the error that ended it."""

    def process(rank: int, count: int, port: str, command: list[str], pipe: Any) -> None:
        os.environ.update(
            zip(VARIABLES, (str(rank), str(count), str(rank), str(count), "localhost", port), strict=True)
        )
        try:
            pipe.send(launch(command))
        except ConfigError as error:
            pipe.send(str(error))

    def run(command: str, *flags: dict[str, Any]) -> list[Any]:
        context, started = multiprocessing.get_context("fork"), []
        with free_port() as port:
            for rank, options in enumerate(flags):
                ours, theirs = context.Pipe()
                target = (rank, len(flags), port, [command, *arguments(options)], theirs)
                child = context.Process(target=process, args=target, daemon=True)
                child.start()
                theirs.close()
                started.append((child, ours))
            answers = [pipe.recv() for _, pipe in started]
            for child, _ in started:
                child.join()
        return answers

    return run


def losses(model_file: Path) -> list[float]:
    reports = json.loads(Path(f"{model_file}.trainstats").read_text())["train_reports"]
    return [report["mean_loss"] for report in reports]


def test_two_processes_have_the_curve_of_one(options, launched, tmp_path):
    """The same losses, step by step, and the same validation; and what they wrote evaluates the same."""
    one, two = tmp_path / "one", tmp_path / "two"
    expected, _ = TrainModel.main(**options, batchsize=8, model_file=str(one), loglevel="error")
    half = {**options, "batchsize": 4, "model_file": str(two), "loglevel": "error", "grad_cache": 1}
    reports = launched("train_model", half, half)
    curve = losses(one)
    assert len(curve) >= 12
    assert sum(curve[-3:]) < 0.9 * sum(curve[:3]), "the last epoch is learnt better than the first"
    assert losses(two) == pytest.approx(curve, rel=1e-3)
    for valid, test in reports:
        for report in (valid, test):
            assert float(report["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-3)
            assert float(report["exs"]) == float(expected["exs"]) == 24
            assert float(report["accuracy"]) == pytest.approx(float(expected["accuracy"]))

    evaluation = {name: options[name] for name in ("task", "selection_folder", "num_negatives")}
    evaluation |= {"model_file": str(two), "datatype": "valid", "loglevel": "error"}
    alone = EvalModel.main(**evaluation, batchsize=5)
    for report in launched("eval_model", {**evaluation, "batchsize": 5}, {**evaluation, "batchsize": 5}):
        for name in ("loss", "accuracy", "hits@5", "mrr", "exs"):
            assert float(report[name]) == pytest.approx(float(alone[name]), rel=1e-4), name


def test_a_vocabulary_is_learnt_before_the_processes_part(options, launched, tmp_path):
    fresh = {**options, "batchsize": 4, "num_epochs": 1.0, "model_file": str(tmp_path / "new"), "loglevel": "error"}
    del fresh["init_model"]
    fresh |= {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "poly_n_codes": 2}
    first, second = launched("train_model", fresh, fresh)
    assert float(first[0]["exs"]) == float(second[0]["exs"]) == 24
    assert {path.name for path in tmp_path.glob("new*")} >= {"new", "new.dict", "new.tokenizer.json", "new.opt"}


def test_processes_with_different_flags(options, launched, tmp_path):
    flags = {**options, "model_file": str(tmp_path / "model"), "loglevel": "error", "batchsize": 4}
    errors = launched("train_model", flags, {**flags, "learningrate": 0.5})
    assert set(errors) == {
        "--learningrate is 0.001 in process 0 and 0.5 in process 1: start all hosts with the same command"
    }


# ---- errors


def test_without_torchrun(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"RANK is not set, as torchrun does: start with torchrun --nproc"):
        launch(["train_model", "-m", "polyencoder"])


@pytest.mark.parametrize("command", [[], ["interactive"]])
def test_another_command(command):
    with pytest.raises(ConfigError, match="the launcher runs train_model and eval_model"):
        launch(command)


def test_the_place_of_a_process(monkeypatch):
    for name, value in zip(VARIABLES, ("5", "8", "1", "4", "host", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert Place.from_environment() == Place(rank=5, count=8, local_rank=1, local_count=4)


# ---- a process dies


@pytest.fixture
def torchrun() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """(arguments, output) -> two processes under torchrun, which does not outlive the test."""
    started = []

    def run(command: list[str], output: Path) -> subprocess.Popen[str]:
        runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with output.open("w") as file:
            process = subprocess.Popen(
                [*runner, "-m", "parlai.agents.ranker.launch", *command],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of torchrun in /proc")
def test_when_one_process_is_killed_all_end(options, torchrun, tmp_path):
    output = tmp_path / "output"
    endless = {**options, "num_epochs": 1e6, "validation_every_n_epochs": -1.0, "model_file": str(tmp_path / "model")}
    process = torchrun(["train_model", *arguments({**endless, "batchsize": 4})], output)
    wait_until(lambda: "mean_loss" in output.read_text() or process.poll() is not None, seconds=300)
    assert process.poll() is None, output.read_text()
    workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    assert process.wait(timeout=60) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.2)
