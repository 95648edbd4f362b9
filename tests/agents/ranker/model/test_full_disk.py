"""Training on a full disk goes on for as long as it can, and never ends as if its model had been saved."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError

pytestmark = pytest.mark.slow

ROOM = 100_000  # bytes: for the small files, not for the model


def test_a_model_that_was_never_written_is_an_error_at_the_end(train, largest_file, dictionary, tmp_path):
    path = tmp_path / "model"
    largest_file(ROOM)
    with pytest.raises(CheckpointError, match=r"model could not be written: File too large, .* no model is there"):
        train("biencoder", path, dict_file=dictionary, num_epochs=3.0, validation_every_n_epochs=1.0)
    assert not path.exists()
    assert not list(tmp_path.glob(".*")), "nothing half-written"
    largest_file(None)
    train("biencoder", path, dict_file=dictionary, num_epochs=1.0, validation_every_n_epochs=1.0)
    assert path.exists()


@pytest.mark.long
def test_a_better_model_that_could_not_be_written(train, largest_file, evaluate, tmp_path):
    """The one before it stays. What is known of the better one does not pass for it in a run that goes on."""
    path = tmp_path / "model"
    train("biencoder", path, num_epochs=2.0, validation_every_n_epochs=1.0)
    before = path.read_bytes()
    largest_file(ROOM)
    for epochs in (4.0, 5.0):
        with pytest.raises(CheckpointError, match=r"when it was the best of this run: an earlier model stays there"):
            train("biencoder", path, num_epochs=epochs, validation_every_n_epochs=1.0)
        assert path.read_bytes() == before
    largest_file(None)
    report = train("biencoder", path, num_epochs=6.0, validation_every_n_epochs=1.0)
    assert path.read_bytes() != before
    assert evaluate(path)["loss"] == pytest.approx(report["loss"], rel=1e-4)


def test_a_vocabulary_that_cannot_be_written(train, largest_file, tmp_path):
    largest_file(1000)
    output = io.StringIO()  # else a file of pytest's, which what an earlier test has set up for logs may make longer
    refused = pytest.raises(CheckpointError, match=r"cannot be written \(File too large")
    with redirect_stdout(output), redirect_stderr(output), refused:
        train("biencoder", tmp_path / "model")
    largest_file(None)  # before pytest reports the result, to a file perhaps
    assert not [file for file in Path(tmp_path).iterdir() if file.suffix in (".dict", ".part")]
