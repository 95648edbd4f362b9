"""Every optimizer and every schedule that the library has trains, is saved and resumes; others are errors."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from parlai.agents.ranker.model.optimization import update_settings
from parlai.core.params import ParlaiParser
from parlai.scripts.train_model import TrainLoop, TrainModel

from polyencoder.checkpoint import read_model_file
from polyencoder.errors import ConfigError
from polyencoder.ranker import Ranker
from polyencoder.settings.training import OptimizerName, TrainingConfig
from polyencoder.training.schedule import Schedule
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

SHORT = {"num_epochs": -1, "validation_every_n_epochs": -1, "validation_every_n_steps": 3, "warmup_updates": 2}
SHORT |= {"lr_scheduler_patience": 1, "batchsize": 4, "eval_batchsize": 4}
SHORT |= {"short_final_eval": True, "validation_max_exs": 8}


def offered(flag: str) -> list[str]:
    """The choices of a flag, as the parser of `train_model -m biencoder` has them."""
    parser = ParlaiParser(add_model_args=True)
    parser.parse_args(["--model", "biencoder"])
    (action,) = [action for action in parser._actions if action.dest == flag]
    return sorted(action.choices)


SCHEDULES = [{"lr_scheduler": name} for name in offered("lr_scheduler") if name != "fixed"]
SCHEDULES += [{"lr_scheduler": "invsqrt", "invsqrt_lr_decay_gamma": 3, "warmup_updates": -1}]
OPTIMIZERS = [{"optimizer": name} for name in get_args(OptimizerName)] + [{"optimizer": "sgd", "momentum": 0.9}]


def numbers_of_numpy(states: Any) -> list[Any]:
    if isinstance(states, dict):
        return [number for value in states.values() for number in numbers_of_numpy(value)]
    if isinstance(states, list | tuple):
        return [number for value in states for number in numbers_of_numpy(value)]
    return [states] if isinstance(states, np.generic | np.ndarray) else []


def test_there_are_choices():
    assert {*get_args(OptimizerName)} <= set(offered("optimizer"))
    assert {"linear", "cosine", "invsqrt", "reduceonplateau"} <= set(offered("lr_scheduler"))


def words(choice: dict[str, Any]) -> str:
    return " ".join(map(str, choice.values()))


@mostly_long("choice", OPTIMIZERS, ids=words, quick=2)
def test_an_optimizer_trains_is_saved_and_goes_on(choice, make_agent, respond, labels, tmp_path):
    def learn(agent: Any) -> None:
        respond(agent, *({"text": f"{label} ?", "labels": [label]} for label in labels))
        assert all(parameter.isfinite().all() for parameter in agent.model.parameters())

    path = tmp_path / "model"
    agent = make_agent("biencoder", model_file=str(path), candidates="batch", warmup_updates=2, **choice)
    for _ in range(3):
        learn(agent)
    agent.save()
    _, states = read_model_file(path)
    assert states["number_training_updates"] == 3
    assert states["optimizer"]["state"] or choice == {"optimizer": "sgd"}
    assert not numbers_of_numpy({**states, "model": {}})

    again = make_agent("biencoder", model_file=path)
    assert again._number_training_updates == 3
    for part in ("state", "param_groups"):
        assert_same(again.optimizer.state_dict()[part], states["optimizer"][part])
    learn(again)
    assert again._number_training_updates == 4


@mostly_long("choice", SCHEDULES, ids=words, quick=1)
def test_a_run_with_a_schedule_is_saved_goes_on_and_is_loaded(choice, train, task, dictionary, labels, tmp_path):
    path = tmp_path / "model"
    options = {**SHORT, "dict_file": dictionary, **choice}
    train("biencoder", path, max_train_steps=4, **options)
    _, states = read_model_file(f"{path}.checkpoint")
    assert states["number_training_updates"] == 3
    assert not numbers_of_numpy({**states, "model": {}})
    assert all(tensor.isfinite().all() for tensor in states["model"].values())

    resuming = {**task, **options, "loglevel": "error", "model_file": str(path), "max_train_steps": 7}
    loop = TrainLoop(TrainModel.setup_args().parse_kwargs(**resuming))
    again = loop.agent
    assert again._number_training_updates == 3
    assert_same(again.optimizer.state_dict()["state"], states["optimizer"]["state"])
    rate = again.optimizer.param_groups[0]["lr"]
    if choice.get("lr_scheduler") in ("linear", "cosine"):  # of a longer run now
        config = TrainingConfig.of(update_settings(again.opt))
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=config.optimizer.learning_rate)
        schedule = Schedule(optimizer, config.schedule, total_updates=7)
        schedule.step(3, time=0.0)
        assert rate == pytest.approx(schedule.learning_rate)
        assert rate > states["optimizer"]["param_groups"][0]["lr"]
    else:
        assert rate == pytest.approx(states["optimizer"]["param_groups"][0]["lr"])
    loop.train()
    assert read_model_file(f"{path}.checkpoint")[1]["number_training_updates"] > 3
    assert Ranker.from_pretrained(path).rank("where is the cat ?", labels, top_k=1)[0].text in labels


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(actual[key], value)
    else:
        assert actual == expected


@pytest.mark.parametrize("name", sorted({"muon", "rmsprop", "sparseadam"} & set(offered("optimizer"))))
def test_an_optimizer_of_parlais_alone_is_an_error_at_the_start(name, make_agent):
    with pytest.raises(ConfigError, match=f"optimizer is '{name}'; it must be one of adamw, ") as error:
        make_agent("biencoder", optimizer=name)
    assert error.value.argument == "optimizer"
    make_agent("biencoder", optimizer=name, datatype="valid")


@pytest.mark.parametrize(
    ("optimizer", "flags", "readers"),
    [
        ("sgd", {"betas": "0.8,0.9"}, ", but by adam, "),
        ("adamw", {"momentum": 0.9}, ", but by sgd"),
        ("adam", {"nus": "0.8"}, ": leave it out"),
    ],
)
def test_a_flag_of_other_optimizers_is_an_error(make_agent, optimizer, flags, readers):
    (name,) = flags
    with pytest.raises(ConfigError, match=rf"--{name} .* is not read by --optimizer {optimizer}{readers}"):
        make_agent("biencoder", optimizer=optimizer, **flags)


def test_the_defaults_of_an_option_file_may_be_given(make_agent):
    flags = {"betas": "0.9,0.999", "momentum": 0.5, "nus": "0.7", "adafactor_eps": "1e-30,1e-3"}
    group = make_agent("biencoder", optimizer="sgd", **flags).optimizer.param_groups[0]
    assert (group["momentum"], group["nesterov"]) == (0.5, True)
    assert not make_agent("biencoder", optimizer="sgd", momentum=0.5, nesterov=False).optimizer.defaults["nesterov"]
