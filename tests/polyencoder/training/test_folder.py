"""A run's folder: locked while it trains, never over a model that was made elsewhere."""

from __future__ import annotations

from contextlib import suppress

import pytest

from polyencoder.errors import CheckpointError, TrainingError
from polyencoder.storage.names import CONFIG
from polyencoder.training.folder import CHECKPOINT, FOLDER, run_folder


def test_two_runs_cannot_train_in_one_folder(tmp_path):
    with run_folder(tmp_path / "run") as processes:
        assert (processes.is_first, processes.count) == (True, 1)
        with pytest.raises(TrainingError) as error, run_folder(tmp_path / "run"):
            pass
        assert error.value.argument == "out"
    with run_folder(tmp_path / "run"):  # the first has ended
        pass


def test_a_run_that_never_began_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), run_folder(tmp_path / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_wrote_stays_when_it_fails(tmp_path):
    out = tmp_path / "run"
    with suppress(KeyError), run_folder(out):
        (out / CHECKPOINT).write_bytes(b"state")
        raise KeyError
    assert [path.name for path in (out / FOLDER).iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize(("name", "what"), [(CONFIG, "a model"), ("README.md", "other files")])
def test_what_was_made_elsewhere_is_not_overwritten(tmp_path, name, what):
    (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=f"holds {what}, but no run to resume"), run_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / FOLDER).mkdir()
    with run_folder(tmp_path):  # the model of a run
        pass
    assert (tmp_path / name).is_file()
