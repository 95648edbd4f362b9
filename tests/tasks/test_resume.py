"""A training run that was stopped goes on with the examples that it has not seen."""

from __future__ import annotations

import json

import pytest
from parlai.tasks.selection import teacher as teacher_module

from tests.tasks.reading import TRAINING, clones_of, questions


@pytest.mark.parametrize("datatype", TRAINING)
@pytest.mark.parametrize("done", [0, 1, 19, 20, 47])
def test_a_resumed_run_goes_on(make_teacher, pairs, texts, tmp_path, datatype, done):
    file = pairs(20)
    undisturbed = texts(make_teacher("selection:jsonl", datatype=datatype, **file), 80)
    (tmp_path / "model.trainstats").write_text(json.dumps({"total_epochs": done / 20}))
    model = {"model_file": str(tmp_path / "model")}
    assert texts(make_teacher("selection:jsonl", datatype=datatype, **file, **model), 30) == undisturbed[done:][:30]


def test_a_checkpoint_counts_before_the_model(make_teacher, pairs, texts, tmp_path):
    file = pairs(20)
    undisturbed = texts(make_teacher("selection:jsonl", datatype="train", **file), 30)
    for name, epochs in {"model.trainstats": 0.25, "model.checkpoint.trainstats": 0.5}.items():
        (tmp_path / name).write_text(json.dumps({"total_epochs": epochs}))
    options = file | {"model_file": str(tmp_path / "model"), "load_from_checkpoint": True}

    def begins_at():
        return undisturbed.index(make_teacher("selection:jsonl", datatype="train", **options).act()["text"])

    assert begins_at() == 5
    (tmp_path / "model.checkpoint").touch()  # ParlAI goes on from it only if it is there
    assert begins_at() == 10
    options["load_from_checkpoint"] = False
    assert begins_at() == 5


def test_evaluation_and_new_models_begin_at_the_beginning(make_teacher, pairs, texts, tmp_path):
    (tmp_path / "model.trainstats").write_text(json.dumps({"total_epochs": 0.5}))
    model = {"model_file": str(tmp_path / "model")}
    file = pairs(4)
    for datatype in ("valid", "train:ordered", "train:evalmode"):
        assert texts(make_teacher("selection:jsonl", datatype=datatype, **file, **model), 1) == questions(0)
    new = make_teacher("selection:jsonl", datatype="train", **file, model_file=str(tmp_path / "other"))
    assert texts(new, 4) == texts(make_teacher("selection:jsonl", datatype="train", **file), 4)


@pytest.mark.parametrize("readers", [2, 3])
def test_each_process_goes_on_where_it_was(make_teacher, pairs, texts, tmp_path, monkeypatch, readers):
    file = pairs(24)
    monkeypatch.setattr(teacher_module, "num_workers", lambda: readers)
    for number in range(readers):
        monkeypatch.setattr(teacher_module, "get_rank", lambda number=number: number)
        undisturbed = texts(make_teacher("selection:jsonl", datatype="train", **file), 24)
        (tmp_path / "model.trainstats").write_text(json.dumps({"total_epochs": 4 * readers / 24}))
        options = file | {"model_file": str(tmp_path / "model")}
        assert texts(make_teacher("selection:jsonl", datatype="train", **options), 20) == undisturbed[4:]


@pytest.mark.parametrize("datatype", TRAINING)
@pytest.mark.parametrize("batches", [1, 5, 13, 20])
def test_a_resumed_run_goes_on_with_mutators(make_teacher, datapath, tmp_path, datatype, batches):
    options = {"datapath": str(datapath), "mutators": "flatten", "candidates": "batch", "batchsize": 4}
    undisturbed = clones_of(make_teacher("selection:convai2", datatype=datatype, **options))(batches + 12)
    (tmp_path / "model.trainstats").write_text(json.dumps({"total_epochs": batches * 4 / 32}))
    model = {"model_file": str(tmp_path / "model")}
    resumed = clones_of(make_teacher("selection:convai2", datatype=datatype, **options, **model))(12)
    assert resumed == undisturbed[batches:]
