"""What the tests of several processes share: a run of training that is small, and a port at which they meet."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from parlai.agents.ranker.launch import launch

from polyencoder.errors import ConfigError
from polyencoder.training.process_group import VARIABLES

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


@pytest.fixture
def arguments() -> Callable[[dict[str, Any]], list[str]]:
    """Options -> the same as flags."""
    return lambda options: [part for name in options for part in (f"--{name.replace('_', '-')}", str(options[name]))]


@pytest.fixture
def losses() -> Callable[[Path], list[float]]:
    """A model file -> the loss of every step of its training."""

    def read(model_file: Path) -> list[float]:
        reports = json.loads(Path(f"{model_file}.trainstats").read_text())["train_reports"]
        return [report["mean_loss"] for report in reports]

    return read


@pytest.fixture
def free_port() -> Callable[[], AbstractContextManager[str]]:
    """() -> a port that no other process is given meanwhile: bound, but not listened at, so that torch may do that."""

    @contextmanager
    def hold() -> Iterator[str]:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("localhost", 0))
            yield str(holder.getsockname()[1])

    return hold


@pytest.fixture
def launched(arguments, free_port) -> Callable[..., list[Any]]:
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
