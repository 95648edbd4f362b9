"""Checkpoints under kills at every operation on files, on a full disk, damaged, and written by others."""

from __future__ import annotations

import errno
import json
import os
import signal
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from parlai.agents.ranker.learning.checkpoints import Checkpoint

from polyencoder.errors import CheckpointError
from polyencoder.storage.checkpoint import read_states

SAVES = 3


def states(number: int, size: int = 4) -> dict:
    return {"model": {"weight": torch.full((size,), float(number))}, "number": number}


def write_counters(path: Path, number: int) -> None:
    """As ParlAI does: in place, so that a kill in between leaves half of them."""
    with open(f"{path}.trainstats", "w") as file:
        file.write('{"parleys": ')
        file.flush()
        os.utime(path)
        file.write(f'{number}, "total_epochs": {number / 3}}}')


def train(path: Path, *, start: int, keep_previous: bool = True) -> None:
    """What a training loop does with its checkpoint, `SAVES` times. Some are followed by a batch, some by the next."""
    checkpoint = Checkpoint(str(path))
    for number in range(start, start + SAVES):
        checkpoint.write(states(number), keep_previous=keep_previous)
        write_counters(path, number)
        if number % 2 == 0:
            checkpoint.seal()


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


def test_a_kill_at_any_operation_leaves_states_with_their_counters(tmp_path):
    """Killed, made ready, and killed again while it is made ready."""
    operation, killed, numbers = 0, True, set()
    while killed:
        path = tmp_path / str(operation) / "model"
        path.parent.mkdir()
        killed = killed_at(operation, lambda path=path: train(path, start=0))
        if path.exists():
            killed_at(operation % 4, partial(Checkpoint(str(path)).make_ready, batch=1))
            if path.exists() and Checkpoint(str(path)).make_ready(batch=1):
                number, counted = what_is_there(path)
                assert number == counted, operation
                numbers.add(number)
            else:
                assert not path.exists()
                assert not Path(f"{path}.previous").exists()
                assert json.loads(Path(f"{path}.trainstats").read_text()) == {}
        train(path, start=10)
        assert what_is_there(path) == (10 + SAVES - 1, 10 + SAVES - 1)
        assert not list(path.parent.glob(".*")), "leftovers of the killed process"
        operation += 1
    assert operation > SAVES * 5  # that many ways to die
    assert numbers == set(range(SAVES))


def test_the_last_two_are_kept(tmp_path):
    path = tmp_path / "model"
    train(path, start=0)
    assert read_states(path)["number"] == SAVES - 1
    assert read_states(f"{path}.previous")["number"] == SAVES - 2
    assert Checkpoint(f"{path}.previous").counters()["parleys"] == SAVES - 2
    train(path, start=10, keep_previous=False)
    assert not Path(f"{path}.previous").exists()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    path = tmp_path / "model"
    train(path, start=0)
    path.write_bytes(path.read_bytes()[:100])
    assert Checkpoint(str(path)).make_ready(batch=1)
    assert what_is_there(path) == (SAVES - 2, SAVES - 2)
    path.write_bytes(b"damaged")
    Path(f"{path}.previous").unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoint(str(path)).make_ready(batch=1)
    assert path.exists()


def test_the_best_model_stands_in_for_a_first_checkpoint_without_counters(tmp_path):
    best, path = tmp_path / "model", tmp_path / "model.checkpoint"
    train(best, start=0)
    Checkpoint(str(path)).write(states(7), keep_previous=True)  # and killed
    assert Checkpoint(str(path)).make_ready(batch=1, otherwise=[Checkpoint(str(best))])
    assert what_is_there(path) == (SAVES - 1, SAVES - 1)
    assert what_is_there(best) == (SAVES - 1, SAVES - 1)


def test_a_model_that_was_copied_without_its_counters_stays(tmp_path):
    best = tmp_path / "model"
    train(best, start=0)
    (tmp_path / "copy").write_bytes(best.read_bytes())
    assert Checkpoint(str(tmp_path / "copy")).make_ready(batch=1)
    assert (tmp_path / "copy").read_bytes() == best.read_bytes()


@pytest.mark.parametrize("counters", [True, False])
def test_files_of_others_are_left_alone(tmp_path, counters):
    path = tmp_path / "model"
    torch.save(states(5), path)
    if counters:
        write_counters(path, 3)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert Checkpoint(str(path)).make_ready(batch=1)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("examples", [120, 7 * 8, 49 * 8])
def test_epochs_that_were_added_in_parts_are_those_of_one_run(tmp_path, examples):
    """ParlAI adds up a run's epochs as fractions: 0.1 + 0.2 is not 0.3."""
    path = tmp_path / "model"
    batch, reported = 8, 0.0
    steps = examples // batch * 3
    checkpoint = Checkpoint(str(path))
    checkpoint.write(states(0), keep_previous=False)
    for step in range(1, steps):  # killed after each
        reported += batch / examples
        Path(f"{path}.trainstats").write_text(json.dumps({"total_epochs": reported, "parleys": step}))
        assert Checkpoint(str(path)).make_ready(batch=batch)
        Path(f"{path}.resume").unlink()  # another checkpoint, as far as its counters are concerned
        reported = json.loads(Path(f"{path}.trainstats").read_text())["total_epochs"]
        assert reported == step * batch / examples
        for goal in (Fraction(1, 2), 1, Fraction(3, 2), 2, 3):
            left = goal * examples - step * batch
            if left > 0 and goal * examples % 1 == 0:
                assert reported + int(left) / examples == goal


def test_what_cannot_be_written_leaves_the_old_checkpoint_with_its_counters(tmp_path, largest_file):
    path = tmp_path / "model"
    train(path, start=0)
    checkpoint = Checkpoint(str(path))
    largest_file(20_000)
    with pytest.raises(OSError, match="File too large"):
        checkpoint.write(states(8, size=100_000), keep_previous=True)
    largest_file(None)
    write_counters(path, 8)  # ParlAI does not know of it
    assert not list(tmp_path.glob(".*"))
    assert checkpoint.make_ready(batch=1)
    assert what_is_there(path) == (SAVES - 1, SAVES - 1)
    checkpoint.write(states(9, size=100_000), keep_previous=True)
    write_counters(path, 9)
    assert Checkpoint(str(path)).make_ready(batch=1)
    assert what_is_there(path) == (9, 9)
    assert read_states(f"{path}.previous")["number"] == SAVES - 1


@pytest.mark.parametrize("best", [False, True])
def test_on_a_full_disk_the_checkpoint_before_makes_room(best, tmp_path, monkeypatch):
    """The disk has room for two: the third is written in the place of the first."""
    path = tmp_path / "model"
    train(path, start=0)
    save = torch.save

    def full_with_three(written, file):
        if Path(f"{path}.previous").exists():
            file.write(b"x")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(written, file)

    monkeypatch.setattr(torch, "save", full_with_three)
    if best:  # whose own checkpoint has none before it: the one before the last checkpoint is needed less
        with pytest.raises(OSError, match="No space"):
            Checkpoint(str(tmp_path / "best")).write(states(9), keep_previous=False)
        Checkpoint(str(tmp_path / "best"), spare=[str(path)]).write(states(9), keep_previous=False)
        assert read_states(tmp_path / "best")["number"] == 9
        assert what_is_there(path) == (SAVES - 1, SAVES - 1)
        return
    Checkpoint(str(path)).write(states(9), keep_previous=True)
    write_counters(path, 9)
    assert Checkpoint(str(path)).make_ready(batch=1)
    assert what_is_there(path) == (9, 9)
    assert read_states(f"{path}.previous")["number"] == SAVES - 1
