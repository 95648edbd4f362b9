"""Checkpoints under kills at every operation on files, on a full disk, and copied."""

from __future__ import annotations

import json
import os
import signal
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from parlai.agents.ranker.model.checkpoints import restore_counters, write_checkpoint

from polyencoder.checkpoint import read_states

SAVES = 3


def states(number: int, size: int = 4) -> dict:
    counters = {"parleys": number, "total_epochs": number / 3}
    return {"model": {"weight": torch.full((size,), float(number))}, "number": number, "counters": counters}


def write_counters(path: Path, number: int) -> None:
    """Writes them in place as ParlAI does, so that a kill in between leaves half of them."""
    with open(f"{path}.trainstats", "w") as file:
        file.write('{"parleys": ')
        file.flush()
        os.utime(path)
        file.write(f'{number}, "total_epochs": {number / 3}}}')


def train(path: Path, *, start: int) -> None:
    """Saves the checkpoint as a training loop does, `SAVES` times."""
    for number in range(start, start + SAVES):
        write_checkpoint(str(path), states(number), in_loop=True)
        write_counters(path, number)


def resume(path: Path) -> None:
    """Reads a checkpoint as an agent does before ParlAI reads the counters."""
    if path.exists():
        restore_counters(str(path), read_states(path)["counters"], batch=1)


def what_is_there(path: Path) -> tuple[int, int]:
    """The numbers of the states and of the counters."""
    return read_states(path)["number"], json.loads(Path(f"{path}.trainstats").read_text())["parleys"]


def killed_at(operation: int, work) -> bool:
    """Do this work in a process of its own, which is killed before so many operations on files; whether it was."""
    child = os.fork()
    if child == 0:
        left = operation

        def counted(original):
            def call(*args, **others):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **others)

            return call

        for name in ("replace", "link", "unlink", "utime"):
            setattr(os, name, counted(getattr(os, name)))
        torch.save = counted(torch.save)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_a_kill_at_any_operation_leaves_states_with_their_counters(tmp_path):
    """Killed, and killed again while it resumes."""
    operation, killed, numbers = 0, True, set()
    while killed:
        path = tmp_path / str(operation) / "model"
        path.parent.mkdir()
        killed = killed_at(operation, lambda path=path: train(path, start=0))
        killed_at(operation % 4, lambda path=path: resume(path))
        resume(path)
        if path.exists():
            number, counted = what_is_there(path)
            assert number == counted, operation
            numbers.add(number)
        else:
            assert not Path(f"{path}.trainstats").exists() or Path(f"{path}.trainstats").read_text() == "{}"
        train(path, start=10)
        assert what_is_there(path) == (10 + SAVES - 1, 10 + SAVES - 1)
        assert not list(path.parent.glob(".*")), "leftovers of the killed process"
        operation += 1
    assert operation > SAVES * 3  # that many ways to die
    assert numbers == set(range(SAVES))


def test_a_model_that_was_copied_without_its_counters_begins_a_run(tmp_path):
    """ParlAI has it so: the file beside the model counts."""
    train(tmp_path / "model", start=0)
    (tmp_path / "copy").write_bytes((tmp_path / "model").read_bytes())
    resume(tmp_path / "copy")
    assert not (tmp_path / "copy.trainstats").exists()


def test_outside_the_loop_there_are_no_counters(tmp_path):
    write_checkpoint(str(tmp_path / "model"), states(1))
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("examples", [120, 7 * 8, 49 * 8])
def test_epochs_that_were_added_in_parts_are_those_of_one_run(tmp_path, examples):
    """ParlAI adds up a run's epochs as fractions: 0.1 + 0.2 is not 0.3."""
    path = tmp_path / "model"
    batch, reported = 8, 0.0
    steps = examples // batch * 3
    Path(f"{path}.trainstats").write_text("{}")
    for step in range(1, steps):  # killed after each
        reported += batch / examples
        restore_counters(str(path), {"total_epochs": reported, "parleys": step}, batch=batch)
        reported = json.loads(Path(f"{path}.trainstats").read_text())["total_epochs"]
        assert reported == step * batch / examples
        for goal in (Fraction(1, 2), 1, Fraction(3, 2), 2, 3):
            left = goal * examples - step * batch
            if left > 0 and goal * examples % 1 == 0:
                assert reported + int(left) / examples == goal


def test_what_cannot_be_written_leaves_the_old_checkpoint_with_its_counters(tmp_path, largest_file):
    path = tmp_path / "model"
    train(path, start=0)
    largest_file(20_000)
    with pytest.raises(OSError, match="File too large"):
        write_checkpoint(str(path), states(8, size=100_000), in_loop=True)
    largest_file(None)
    write_counters(path, 8)  # ParlAI does not know of it
    assert not list(tmp_path.glob(".*"))
    resume(path)
    assert what_is_there(path) == (SAVES - 1, SAVES - 1)
