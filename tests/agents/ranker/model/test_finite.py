"""A loss that is nan or infinite: nothing is trained on it, it is counted, and too many in a row end training."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from polyencoder.checkpoint import read_model_file
from polyencoder.errors import CheckpointError, TrainingError
from polyencoder.ranker import Ranker
from polyencoder.storage.names import TOKENIZER
from tests.agents.ranker.model.killing import same

pytestmark = pytest.mark.slow

TURNS = [{"text": text, "labels": [f"{text} too"]} for text in ("hello", "bye")]
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def make_learner(make_agent, respond, monkeypatch):
    """(**options) -> an agent, and a function that trains it on a batch whose first loss is multiplied."""

    def make(**options):
        agent = make_agent("polyencoder", candidates="batch", warmup_updates=-1, learningrate=0.1, **options)
        objective, factor = agent.trainer.objective, [1.0]
        loss = objective.loss

        def multiplied(*args):
            losses, sums = loss(*args)
            return losses * torch.tensor([factor[0]] + [1.0] * (len(losses) - 1)), sums

        multiplied.has_choice = loss.has_choice
        monkeypatch.setattr(objective, "loss", multiplied)

        def learn(by=1.0):
            factor[0] = by
            respond(agent, *TURNS)

        return agent, learn

    return make


def state_of(agent):
    return deepcopy((agent.model.state_dict(), agent.optimizer.state_dict()["state"]))


@pytest.mark.parametrize("value", [NAN, INF])
def test_nothing_is_trained_on_it(make_learner, value):
    agent, learn = make_learner()
    learn()
    before = state_of(agent)
    learn(value)
    assert same(state_of(agent), before)
    report = agent.global_metrics.report()
    assert float(report["nonfinite_updates"]) == 1
    assert torch.isfinite(torch.tensor(float(report["mean_loss"]))), "the batch is not in the averages either"
    assert agent._number_training_updates == 2, "ParlAI's loop counts it, so the schedule does too"
    learn()
    assert not same(state_of(agent), before)
    assert all(p.isfinite().all() for p in agent.model.parameters())


def test_too_many_in_a_row_are_an_error_that_names_the_step(make_learner):
    _, learn = make_learner(max_nonfinite=2)
    for _ in range(3):  # never two in a row
        learn(NAN)
        learn()
    learn(NAN)
    with pytest.raises(TrainingError, match=r"update 8: the loss is nan"):
        learn(NAN)


# ---- whole runs


def test_a_run_that_diverges_keeps_what_it_had(train, trained, copy_of):
    path = copy_of("biencoder")
    before = path.read_bytes()
    with pytest.raises(TrainingError, match="update"):
        train("biencoder", path, learningrate=1e6, warmup_updates=0, optimizer="adam")
    assert path.read_bytes() == before


@pytest.mark.parametrize("metric", ["loss", "mrr"])
def test_a_validation_without_numbers_is_never_the_best(metric, make_agent):
    agent = make_agent("biencoder", validation_metric=metric)
    with pytest.raises(TrainingError, match=f"{metric} is nan"):
        agent.receive_metrics({"accuracy": 1.0, metric: NAN})


def test_a_model_of_nan_is_not_saved(make_agent, tmp_path):
    agent = make_agent("biencoder")
    with torch.no_grad():
        next(agent.model.parameters()).fill_(NAN)
    with pytest.raises(CheckpointError, match=r"model is not written: .* nan"):
        agent.save(str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


# ---- such a model from elsewhere


@pytest.fixture
def broken(copy_of) -> Path:
    """A model file with an infinite number."""
    path = copy_of("biencoder")
    states = dict(read_model_file(path)[1])
    name, tensor = next(iter(states["model"].items()))
    states["model"] = {**states["model"], name: tensor.clone()}
    states["model"][name].view(-1)[3] = INF
    torch.save(states, f"{path}.new")
    shutil.move(f"{path}.new", path)
    return path


@pytest.mark.parametrize("flag", ["model_file", "init_model", "teacher_model"])
def test_no_agent_loads_it(flag, broken, make_agent, dictionary):
    more = {"dict_file": dictionary} if flag == "teacher_model" else {}
    with pytest.raises(CheckpointError, match=r"model: 1 of the \d+ numbers in .* nan or infinite"):
        make_agent("biencoder", **{flag: str(broken)}, **more)


def test_the_library_does_not_load_it(broken, make_ranker, tmp_path):
    with pytest.raises(CheckpointError, match="nan or infinite"):
        Ranker.from_pretrained(broken)
    ranker = make_ranker("poly")
    with torch.no_grad():
        next(ranker.model.parameters())[0] = NAN
    ranker.save_pretrained(tmp_path / "folder")
    with pytest.raises(CheckpointError, match="nan or infinite"):
        Ranker.from_pretrained(tmp_path / "folder")


def test_no_backbone_is_made_of_it(broken, make_ranker, tmp_path):
    ranker = make_ranker("bi")
    with torch.no_grad():
        next(ranker.model.parameters())[0] = NAN
    ranker.save_pretrained(tmp_path / "ranker")
    encoder = next(m for m in ranker.model.modules() if hasattr(m, "takes_segments")).model
    encoder.save_pretrained(tmp_path / "encoder")
    assert (tmp_path / "encoder" / "config.json").is_file()
    shutil.copy(tmp_path / "ranker" / TOKENIZER, tmp_path / "encoder" / TOKENIZER)
    with pytest.raises(CheckpointError, match="nan or infinite"):
        Ranker.from_backbone(tmp_path / "encoder")
