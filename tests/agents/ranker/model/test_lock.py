"""Two trainings of one model file: the second is an error, and what only reads the model goes on."""

from __future__ import annotations

import os

import pytest

from polyencoder.errors import TrainingError
from polyencoder.training.lock import TrainingLock

pytestmark = pytest.mark.slow


@pytest.fixture
def trained_elsewhere(copy_of, locked_elsewhere):
    """A model file that another process is training, and its id."""
    path = copy_of("biencoder")
    return path, locked_elsewhere(path)


def test_it_is_an_error_that_names_the_other(trained_elsewhere, train):
    path, child = trained_elsewhere
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(TrainingError, match=f"is being trained by process {child}"):
        train("biencoder", path)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_neither_learns_a_vocabulary_for_the_other(train, locked_elsewhere, tmp_path):
    child = locked_elsewhere(tmp_path / "model")
    with pytest.raises(TrainingError, match=f"process {child}"):
        train("biencoder", tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["model.lock"]


def test_it_may_be_read(trained_elsewhere, evaluate, trained, make_agent, respond, labels):
    path, _ = trained_elsewhere
    assert evaluate(path)["loss"] == pytest.approx(trained("biencoder")[1]["loss"], rel=1e-4)
    agent = make_agent("biencoder", model_file=path, datatype="valid")
    (reply,) = respond(agent, {"text": "where is the cat ?", "label_candidates": labels})
    assert reply["text"] in labels


def test_one_process_may_train_on(train, tmp_path):
    for epochs in (1.1, 2.1):
        train("biencoder", tmp_path / "model", num_epochs=epochs, validation_every_n_epochs=1.0)


def test_of_several_processes_the_first_has_it(make_agent, in_processes, tmp_path):
    path = str(tmp_path / "model")

    def run(rank: int) -> bool:
        agent = make_agent("biencoder", model_file=path, load_from_checkpoint=True)
        return agent._run._lock is not None

    assert in_processes(run) == [True, False]
    lock = TrainingLock.get_or_create(path)
    results = in_processes(lambda rank: _error(lambda: run(rank)))
    assert all(f"process {os.getpid()}" in result for result in results)
    lock.release()


def _error(call) -> str:
    try:
        return str(call())
    except TrainingError as error:
        return str(error)
