"""Model files: stopped and continued, started from another model's weights, vacuumed, moved."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from parlai.scripts.train_model import TrainLoop, TrainModel
from parlai.scripts.vacuum import Vacuum

from polyencoder.checkpoint import read_model_file
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

STOPPED = {"num_epochs": -1, "validation_every_n_epochs": -1, "validation_every_n_steps": 3, "warmup_updates": 4}
STOPPED |= {"save_after_valid": True, "load_from_checkpoint": True, "lr_scheduler_patience": 1}


def agent_that_train_model_starts_with(**options):
    return TrainLoop(TrainModel.setup_args().parse_kwargs(loglevel="error", **options)).agent


def same_tensors(old, new) -> bool:
    return old.keys() == new.keys() and all(torch.equal(tensor, new[name]) for name, tensor in old.items())


@mostly_long("model", ["polyencoder", "crossencoder"], quick=1)
def test_training_that_was_stopped_goes_on_where_it_was(model, train, task_of, tmp_path):
    path = tmp_path / "model"
    train(model, path, max_train_steps=7, **STOPPED)
    _, states = read_model_file(f"{path}.checkpoint")
    assert states["number_training_updates"] == 6

    agent = agent_that_train_model_starts_with(model_file=str(path), **STOPPED, **task_of(model))
    assert agent._number_training_updates == 6
    assert same_tensors(agent.model.state_dict(), states["model"])
    moments = agent.optimizer.state_dict()
    assert moments["param_groups"] == states["optimizer"]["param_groups"]
    assert len(moments["state"]) == len([p for p in agent.model.parameters() if p.requires_grad])
    for number, saved in states["optimizer"]["state"].items():
        assert same_tensors(moments["state"][number], saved)
        assert saved["step"] == 6
    plateau = agent.updates.schedule.state_dict()
    assert plateau == states["training"]["updates"]["schedule"]
    assert plateau["best"] < float("inf")  # one validation came after the warm-up

    train(model, path, max_train_steps=12, **STOPPED)
    stats = json.loads((tmp_path / "model.checkpoint.trainstats").read_text())
    assert [report["train_steps"] for report in stats["valid_reports"]] == [3, 6, 9]
    assert [report["total_train_updates"] for report in stats["valid_reports"]] == [3, 6, 9]
    assert read_model_file(f"{path}.checkpoint")[1]["number_training_updates"] == 9


@pytest.mark.long
def test_a_warm_up_that_was_stopped_goes_on_where_it_was(train, task, tmp_path):
    slow = {**STOPPED, "warmup_updates": 10}
    train("biencoder", tmp_path / "model", max_train_steps=7, learningrate=1e-3, **slow)
    agent = agent_that_train_model_starts_with(model_file=str(tmp_path / "model"), **slow, **task)
    assert agent.updates.learning_rate == pytest.approx(1e-3 * 6 / 10, rel=1e-3)
    assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 6 / 10, rel=1e-3)


@pytest.mark.parametrize("model", ["polyencoder", "crossencoder"])
def test_init_model_starts_from_a_biencoder(model, trained, train, make_agent, task, tmp_path):
    path, _ = trained("biencoder")
    agent = make_agent(model, init_model=str(path), model_file=str(tmp_path / "new"), dict_file=None, **task)
    old = read_model_file(path)[1]["model"]
    tower = "tower" if model == "crossencoder" else "context_tower"
    for name, tensor in agent.model.state_dict().items():
        if name.startswith(f"{tower}."):
            assert torch.equal(tensor, old[name.replace(tower, "context_tower", 1)])
        elif name.startswith("own_candidate_tower."):
            assert torch.equal(tensor, old[name])
    assert agent._number_training_updates == 0
    assert not agent.optimizer.state_dict()["state"]
    assert agent.dict.tok2ind == make_agent("biencoder", model_file=str(path)).dict.tok2ind

    train(model, tmp_path / "new", init_model=str(path), max_train_steps=2, **task)
    assert read_model_file(tmp_path / "new")[0].architecture == agent.ranker.config.architecture


def test_init_model_brings_its_tokenizer_to_another_task(trained, train, make_agent, make_task, tmp_path):
    """The new task's own words would give another vocabulary, to which the weights' embeddings do not belong."""
    path, _ = trained("biencoder")
    words = ["azure", "crimson", "emerald", "saffron"]
    turns = [
        {"text": f"paint it {w} !", "labels": f"{w} it is", "label_candidates": ["no", f"{w} it is"]} for w in words
    ]
    other = make_task(tmp_path, train=[[turn] for turn in turns])
    train("biencoder", tmp_path / "new", init_model=str(path), max_train_steps=1, batchsize=2, **other)
    agent = make_agent("biencoder", model_file=tmp_path / "new")
    assert agent.dict.tok2ind == make_agent("biencoder", model_file=path).dict.tok2ind


def test_a_vacuumed_model_file_is_smaller_and_answers_the_same(copy_of, trained, evaluate, make_agent, task):
    path, (_, report) = copy_of("polyencoder"), trained("polyencoder")
    before = path.stat().st_size
    Vacuum.main("--model-file", str(path), "--no-backup")
    assert path.stat().st_size < 0.5 * before
    assert "optimizer" not in read_model_file(path)[1]
    assert evaluate(path)["loss"] == pytest.approx(report["loss"], rel=1e-4)
    agent = make_agent("polyencoder", model_file=path, datatype="train", **task)  # and it can be trained on
    assert not agent.optimizer.state_dict()["state"]


@pytest.mark.parametrize("stale", ["nothing", "another dictionary"])
def test_a_moved_model_uses_the_dictionary_beside_it(stale, copy_of, trained, evaluate, dictionary, tmp_path):
    """The `.opt` file names the old place, where there is nothing any more, or by now another model."""
    path = copy_of("biencoder")
    old = tmp_path / "old"
    old.mkdir()
    if stale == "another dictionary":
        shutil.copy(dictionary, old / "model.dict")
        tokenizer = json.loads((tmp_path / "model.tokenizer.json").read_text())
        tokenizer["normalizer"] = None
        (old / "model.tokenizer.json").write_text(json.dumps(tokenizer))
    opt = json.loads((tmp_path / "model.opt").read_text())
    opt["model_file"], opt["dict_file"] = str(old / "model"), str(old / "model.dict")
    (tmp_path / "model.opt").write_text(json.dumps(opt))
    assert evaluate(path)["loss"] == pytest.approx(trained("biencoder")[1]["loss"], rel=1e-4)
