"""A lock of a process: taken once, named in the other's error, gone with its process."""

from __future__ import annotations

import gc
import os
import signal
import socket
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError, TrainingError
from polyencoder.training.lock import TrainingLock


def is_free(model_file: Path) -> bool:
    """Whether another process could take the lock."""
    child = os.fork()
    if child == 0:
        try:
            TrainingLock.get_or_create(model_file)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_it_is_this_processs_for_as_long_as_somebody_keeps_it(tmp_path):
    model = tmp_path / "new" / "model"
    lock = TrainingLock.get_or_create(model)
    assert TrainingLock.get_or_create(model) is lock
    assert TrainingLock.get_or_create(tmp_path / "new" / ".." / "new" / "model") is lock
    assert not is_free(model)
    again = TrainingLock.get_or_create(model)
    del lock
    gc.collect()
    assert not is_free(model)
    del again
    gc.collect()
    assert is_free(model)


def test_two_trainings_of_one_process_exclude_each_other(tmp_path):
    """The end of the first, or of its attempt, does not free the other's."""
    first = TrainingLock(tmp_path / "model")
    for lock in (TrainingLock, TrainingLock.get_or_create):
        with pytest.raises(TrainingError, match=f"is being trained by process {os.getpid()}"):
            lock(tmp_path / "model")
    assert not is_free(tmp_path / "model")
    first.release()
    second = TrainingLock(tmp_path / "model")
    first.release()
    assert not is_free(tmp_path / "model")
    second.release()


def test_it_can_be_given_back(tmp_path):
    lock = TrainingLock.get_or_create(tmp_path / "model")
    lock.release()
    assert not list(tmp_path.iterdir())
    assert TrainingLock.get_or_create(tmp_path / "model") is not lock


def test_the_error_names_the_other_process(locked_elsewhere, tmp_path):
    child = locked_elsewhere(tmp_path / "model")
    message = rf"{tmp_path}/model is being trained by process {child}, since .*in another place"
    for _ in range(2):  # asking does not take it off
        with pytest.raises(TrainingError, match=message):
            TrainingLock.get_or_create(tmp_path / "model")
    TrainingLock.get_or_create(tmp_path / "other")


def test_the_error_names_the_other_host(locked_elsewhere, tmp_path, monkeypatch):
    child, name = locked_elsewhere(tmp_path / "model"), socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with pytest.raises(TrainingError, match=f"process {child} on {name}, since"):
        TrainingLock.get_or_create(tmp_path / "model")


def test_a_kill_takes_it_off(locked_elsewhere, tmp_path):
    child = locked_elsewhere(tmp_path / "model")
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert (tmp_path / "model.lock").exists()
    TrainingLock.get_or_create(tmp_path / "model")


def test_a_process_that_was_forked_has_none(tmp_path):
    """Its end takes no lock off."""
    lock = TrainingLock.get_or_create(tmp_path / "model")
    child = os.fork()
    if child == 0:
        try:
            lock.release()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not is_free(tmp_path / "model")
    assert (tmp_path / "model.lock").exists()


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written .*that you can write to") as error:
        TrainingLock.get_or_create(tmp_path / "file" / "model")
    assert error.value.argument == "model_file"
