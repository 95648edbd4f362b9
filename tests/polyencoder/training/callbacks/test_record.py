"""The record of how a model was made."""

from __future__ import annotations

import json
import sys

import pytest

from polyencoder.training.callbacks.record import Record


def test_the_record_keeps_the_starts_of_a_resumed_run(run, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    monkeypatch.setattr(sys, "argv", ["parlai", "train_model", "-t", "my task"])
    record = Record(path, {"seed": 3, "learningrate": 1e-3, "odd": {1, 2}})
    for updates in (0, 40, 90):
        run.updates.count = updates
        record.on_start(run)
    written = json.loads(path.read_text())
    assert [start["updates"] for start in written["starts"]] == [0, 40, 90]
    assert written["starts"][0]["command"] == "parlai train_model -t 'my task'"
    versions = written["starts"][0]["versions"]
    assert versions.keys() >= {"python", "torch", "transformers", "parlai", "parlai-polyencoder"}
    assert written["seed"] == 3
    assert written["options"]["learningrate"] == 1e-3
    run.updates.count = 0  # another run with the same name
    record.on_start(run)
    assert len(json.loads(path.read_text())["starts"]) == 1


@pytest.mark.parametrize("damaged", ["", "{", "{}", "[]", '{"starts": 3}', '"\\udcff"'])
def test_a_damaged_record_begins_anew(run, tmp_path, damaged):
    path = tmp_path / "run.json"
    path.write_text(damaged)
    run.updates.count = 40
    Record(path, {}).on_start(run)
    assert [start["updates"] for start in json.loads(path.read_text())["starts"]] == [40]


def test_a_record_that_cannot_be_written_ends_no_run(run, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    Record(tmp_path / "file" / "run.json", {}).on_start(run)
    assert "could not be written" in caplog.text
