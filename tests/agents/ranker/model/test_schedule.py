"""The learning rate: a warm-up, then a decay whenever the validation loss has stopped falling."""

from __future__ import annotations

import pytest
import torch
from parlai.agents.ranker.model.build_trainer import training_config
from parlai.agents.ranker.settings import OTHER_NAMES
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.settings.training import TrainingConfig
from polyencoder.training.optimizer import build_optimizer
from polyencoder.training.schedule import Schedule

OPTIONS = {
    "optimizer": "adamw",
    "learningrate": 1.0,
    "lr_scheduler": "reduceonplateau",
    "lr_scheduler_decay": 0.4,
    "lr_scheduler_patience": 0,
    "warmup_updates": 4,
    "warmup_rate": 1e-4,
    "max_train_steps": 10,
    "invsqrt_lr_decay_gamma": -1,
}


class WithCodes(TrainableModel):
    """An encoder, and codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))

    @property
    def new_parameters(self):
        return [self.codes]


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=1.0)


def config_of(**options) -> TrainingConfig:
    given = {**OPTIONS, **options}
    return training_config(Opt({**given, "datatype": "train", "candidates": "batch", "override": given}))


def schedule_of(optimizer, **options):
    return Schedule(optimizer, config_of(**options).schedule, total_updates=10)


def test_patience_is_not_negative(optimizer):
    with pytest.raises(ConfigError, match="patience is -1; it must be at least 0") as error:
        schedule_of(optimizer, lr_scheduler_patience=-1)
    assert error.value.argument == "schedule.patience"
    assert OTHER_NAMES["patience"] == "lr_scheduler_patience"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1]),
        ("invsqrt", [0.25, 0.5, 0.75, 1, (4 / 5) ** 0.5, (4 / 6) ** 0.5]),
        ("linear", [0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6]),
        ("cosine", [0.25, 0.5, 0.75, 1, 0.9330, 0.75]),
    ],
)
def test_the_other_schedules_run(name, expected, make_agent, respond):
    options = {"warmup_updates": 4, "max_train_steps": 10, "lr_scheduler_patience": 1, "learningrate": 1.0}
    agent = make_agent("biencoder", lr_scheduler=name, optimizer="sgd", gradient_clip=1e-6, **options)
    seen = []
    for _ in expected:
        respond(agent, {"text": "a", "labels": ["b"]}, {"text": "c", "labels": ["d"]})
        seen.append(agent.optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx(expected, abs=1e-3)
    agent.receive_metrics({"loss": 1.0, "accuracy": 0.5})
    assert agent.state_dict()["number_training_updates"] == len(expected)


def test_a_validation_that_lowers_the_rate(make_agent):
    agent = make_agent("biencoder", warmup_updates=-1, learningrate=1.0)
    for rate in (1.0, 0.4, 0.16):
        agent.receive_metrics({"loss": 1.0, "accuracy": 0.5})
        assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_schedule_of_parlais_alone_is_refused(make_agent):
    with pytest.raises(ConfigError, match=r"--lr-scheduler fixed is not supported; use one of reduceonplateau, linear"):
        make_agent("biencoder", lr_scheduler="fixed")
    make_agent("biencoder", lr_scheduler="fixed", datatype="valid")


def test_the_defaults_are_the_papers(make_agent):
    opt = make_agent("polyencoder").opt
    wanted = {"lr_scheduler": "reduceonplateau", "lr_scheduler_decay": 0.4, "lr_scheduler_patience": 0}
    wanted |= {"optimizer": "adamw", "learningrate": 5e-5, "warmup_updates": 100, "validation_every_n_epochs": 0.5}
    assert {name: opt[name] for name in wanted} == wanted
    assert make_agent("crossencoder").opt["warmup_updates"] == 1000


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, 100),
        ({"new_learning_rate": 2e-3}, 20),
        ({"init_model": "trained"}, 1),
        ({"init_model": "trained", "new_learning_rate": 2e-3}, 20),
        ({"optimizer": "sgd"}, 1),
    ],
)
def test_new_parts_follow_the_schedule_at_their_own_rate(options, factor):
    model = WithCodes()
    config = config_of(**{"learningrate": 1e-4, "optimizer": "adamax", **options})
    optimizer = build_optimizer(model, config.optimizer)
    schedule = Schedule(optimizer, config.schedule, total_updates=10)
    encoder, new = optimizer.param_groups
    for update in range(6):
        assert new["lr"] == pytest.approx(factor * encoder["lr"])
        schedule.step(update, time=0.0)
    assert encoder["lr"] == pytest.approx(1e-4)
