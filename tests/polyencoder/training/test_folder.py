"""A run's folder: locked while it trains, never over a model that was made elsewhere."""

from __future__ import annotations

from contextlib import suppress

import pytest

from polyencoder.errors import CheckpointError, TrainingError
from polyencoder.storage.files import write_text
from polyencoder.storage.names import CONFIG
from polyencoder.training.folder import CHECKPOINT, FOLDER, RECORD, run_folder


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


@pytest.mark.parametrize(
    ("name", "contents"),
    [(CONFIG, "a model"), *((name, name) for name in ("README.md", "tokenizer.json", "polyencoder.safetensors"))],
)
def test_what_was_made_elsewhere_is_not_overwritten(tmp_path, name, contents):
    (tmp_path / FOLDER).mkdir()  # a folder of that name alone makes no run of a project
    (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=f"holds {contents}, but no run to resume"), run_folder(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, FOLDER])


@pytest.mark.parametrize("written", [CHECKPOINT, f"{CHECKPOINT}.lock", RECORD])
def test_what_a_run_wrote_is_resumed(tmp_path, written):
    """A run that was killed at its start, before its first checkpoint, is resumed, too."""
    (tmp_path / FOLDER).mkdir()
    for name in (CONFIG, "README.md", written):
        (tmp_path / name).write_text("{}")
    with run_folder(tmp_path):
        pass
    assert (tmp_path / CONFIG).is_file()


def test_the_model_of_a_run_that_has_ended_needs_its_checkpoint(tmp_path):
    """Which may have been removed to save space: another run would begin anew, and replace the model."""
    (tmp_path / FOLDER).mkdir()
    for name, text in ((CONFIG, "{}"), (RECORD, '{"starts": [{"end": {}}]}'), (f"{CHECKPOINT}.lock", "")):
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"without its {CHECKPOINT}"), run_folder(tmp_path):
        pass
    (tmp_path / CHECKPOINT).write_bytes(b"")
    with run_folder(tmp_path):
        pass


def test_other_files_do_not_matter(tmp_path):
    """Such as the data, a log, or the lost+found of a disk."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "log.txt").touch()
    with run_folder(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "lost+found"]


def test_a_run_removes_what_killed_runs_left(tmp_path, make_ranker, killed_after):
    """Gigabytes, of large models."""
    with run_folder(tmp_path):
        make_ranker("bi").save_pretrained(tmp_path)
        (tmp_path / CHECKPOINT).write_bytes(b"state")
        names = sorted(path.name for path in tmp_path.rglob("*") if not path.name.endswith(".lock"))
    killed_after(0, lambda: make_ranker("bi", seed=1).save_pretrained(tmp_path))
    killed_after(0, lambda: write_text(tmp_path / CHECKPOINT, "state"))
    assert len([*tmp_path.rglob(".*")]) > 2
    with run_folder(tmp_path):
        assert sorted(path.name for path in tmp_path.rglob("*") if not path.name.endswith(".lock")) == names
