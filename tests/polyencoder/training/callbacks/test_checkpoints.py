"""When checkpoints are written, what they refuse to resume, and what a full disk does."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from polyencoder.errors import CheckpointError, TrainingError
from polyencoder.training.callbacks import checkpoints as module
from polyencoder.training.callbacks.checkpoints import Checkpoints


@pytest.fixture
def run():
    """A run whose state is its number of updates."""
    run_state = SimpleNamespace(processes=SimpleNamespace(is_first=True))
    run_state.updates = SimpleNamespace(count=0, is_under_way=False)
    run_state.state_dict = lambda: {"count": run_state.updates.count}
    run_state.load_state_dict = lambda state: setattr(run_state.updates, "count", state["count"])
    return run_state


def resumed(path, run, **settings) -> Checkpoints:
    run.updates.count = 0
    checkpoints = Checkpoints(path, **settings)
    checkpoints.on_start(run)
    return checkpoints


def test_an_evaluation_is_followed_by_a_checkpoint(run, tmp_path):
    path = tmp_path / "checkpoint.pt"
    checkpoints = resumed(path, run, settings={})
    assert not checkpoints.resumed
    run.updates.count = 1
    checkpoints.after_all(run)
    assert not path.exists()
    checkpoints.on_evaluation(run, {})
    assert not path.exists()  # other callbacks are yet to see the evaluation
    checkpoints.after_all(run)
    run.updates.count = 2
    checkpoints.after_all(run)  # none is due
    checkpoints.on_end(run)
    assert resumed(path, run, settings={}).resumed
    assert run.updates.count == 1


def test_a_checkpoint_waits_for_the_accumulated_update(run, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoint.pt", settings={})
    checkpoints.on_evaluation(run, {})
    run.updates.is_under_way = True
    checkpoints.after_all(run)
    assert list(tmp_path.iterdir()) == []
    run.updates.is_under_way = False
    checkpoints.after_all(run)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize(("every", "writes"), [(60.0, False), (30.0, True), (0.0, True)])
def test_an_interval_of_time_makes_a_checkpoint_due(run, tmp_path, monkeypatch, every, writes):
    checkpoints = Checkpoints(tmp_path / "checkpoint.pt", settings={}, every_seconds=every)
    now = time.monotonic()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now + 31))
    checkpoints.after_all(run)
    assert (tmp_path / "checkpoint.pt").exists() == writes


def test_other_settings_are_an_error_that_names_the_given_one_first(run, tmp_path):
    path = tmp_path / "checkpoint.pt"
    Checkpoints(path, settings={"batch_size": 4, "seed": 1, "epochs": 2, "gone": 0}).write(run)
    now = {"batch_size": 8, "seed": 2, "epochs": 3, "gone": 0}
    with pytest.raises(CheckpointError, match=r"was begun with seed 1, not 2; .* or look elsewhere") as error:
        resumed(path, run, settings=now, changeable={"epochs"}, explicit={"seed", "epochs"}, instead="look elsewhere")
    assert error.value.argument == "seed"
    with pytest.raises(CheckpointError, match="was begun with batch_size 4, not 8"):
        resumed(path, run, settings=now, changeable={"epochs"})
    assert resumed(path, run, settings=now, changeable={"epochs", "seed", "batch_size"}).resumed
    assert resumed(path, run, settings={}, changeable={"epochs", "seed", "batch_size", "gone"}).resumed


def test_a_checkpoint_that_is_older_than_a_setting_was_begun_with_its_default(run, tmp_path):
    path = tmp_path / "checkpoint.pt"
    Checkpoints(path, settings={"seed": 1}).write(run)
    defaults = {"seed": 0, "objective": "softmax"}
    assert resumed(path, run, settings={"seed": 1, "objective": "softmax"}, defaults=defaults).resumed
    now = {"seed": 1, "objective": "bce"}
    with pytest.raises(CheckpointError, match="was begun with objective 'softmax', not 'bce'; continue") as error:
        resumed(path, run, settings=now, defaults=defaults)
    assert error.value.argument == "objective"
    with pytest.raises(CheckpointError, match="was begun with seed 1, not 2"):  # what the checkpoint says comes first
        resumed(path, run, settings=now | {"seed": 2}, defaults=defaults, explicit={"objective"})
    assert resumed(path, run, settings=now, defaults=defaults, changeable={"objective"}).resumed


@pytest.mark.parametrize("written", [b"", b"no checkpoint", {"format_version": 1, "settings": {}, "run": {}}, {}])
def test_a_file_that_cannot_be_resumed_from_is_an_error(run, tmp_path, written):
    path = tmp_path / "checkpoint.pt"
    if isinstance(written, bytes):
        path.write_bytes(written)
    else:
        torch.save(written, path)
    with pytest.raises(CheckpointError, match="damaged|another version of polyencoder wrote it"):
        resumed(path, run, settings={})


def test_a_state_without_a_key_is_of_another_version(run, tmp_path):
    path = tmp_path / "checkpoint.pt"
    run.state_dict = dict
    Checkpoints(path, settings={}).write(run)
    with pytest.raises(CheckpointError, match="has no 'count': another version of polyencoder wrote it"):
        resumed(path, run, settings={})


def test_a_disk_that_is_full_for_a_while_ends_no_run(run, tmp_path, caplog):
    path = tmp_path / "folder" / "checkpoint.pt"
    (tmp_path / "folder").write_text("")  # in the place of the folder
    checkpoints = Checkpoints(path, settings={})
    checkpoints.write(run)
    assert "could not be written" in caplog.text
    with pytest.raises(TrainingError, match="could not be written"):
        checkpoints.on_end(run)
    (tmp_path / "folder").unlink()
    checkpoints.write(run)
    checkpoints.on_end(run)
    assert path.is_file()


def test_processes_besides_the_first_write_nothing(run, tmp_path):
    run.processes.is_first = False
    Checkpoints(tmp_path / "checkpoint.pt", settings={}).write(run)
    assert list(tmp_path.iterdir()) == []
