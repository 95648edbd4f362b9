"""The settings of heads that classify intents are checked."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.intents import FitSettings, HeadConfig


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"hidden_layers": -1}, "hidden_layers"),
        ({"hidden_layers": 99}, "hidden_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": "much"}, "dropout"),
    ],
)
def test_what_is_no_head(fields, argument):
    with pytest.raises(ConfigError, match=argument) as raised:
        HeadConfig(**fields)
    assert raised.value.argument == argument


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "lion"},
        {"batch_size": 0},
        {"patience": 0},
        {"max_epochs": 0},
        {"held_out": 0.0},
        {"held_out": 1.0},
        {"learning_rate": -1.0},
    ],
)
def test_what_is_no_training_of_one(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        FitSettings(**fields)
