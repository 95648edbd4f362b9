"""The learning rate: a warm-up, then a decay whenever the validation loss has stopped falling."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError


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
    expected = {"lr_scheduler": "reduceonplateau", "lr_scheduler_decay": 0.4, "lr_scheduler_patience": 0}
    expected |= {"optimizer": "adamw", "learningrate": 5e-5, "warmup_updates": 100, "validation_every_n_epochs": 0.5}
    assert {name: opt[name] for name in expected} == expected
    assert make_agent("crossencoder").opt["warmup_updates"] == 1000
