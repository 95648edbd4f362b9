"""The settings of a run: defaults that depend on others, and what is given in vain."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.training.settings import RunSettings


def test_three_epochs_unless_updates_are_counted():
    assert RunSettings(train="a", out="b", backbone="c").epochs == 3
    assert RunSettings(train="a", out="b", backbone="c", max_updates=9).epochs is None
    assert RunSettings(train="a", out="b", backbone="c", max_updates=9, epochs=2).epochs == 2


@pytest.mark.parametrize(
    ("given", "unread"),
    [
        ({}, []),
        ({"architecture": "bi", "n_codes": 16}, ["n_codes"]),
        ({"architecture": "cross", "n_codes": 16, "grad_cache": 4}, ["n_codes", "grad_cache"]),
        ({"architecture": "cross", "pair_tokens": 99, "share_encoders": True}, ["share_encoders"]),
        ({"pair_tokens": 99, "distillation_weight": 0.1}, ["pair_tokens", "distillation_weight"]),
        ({"teacher": "t", "distillation_weight": 0.1, "n_codes": 16, "grad_cache": 4}, []),
        ({"hard_negative_ranks": "5-10"}, ["hard_negative_ranks"]),
        ({"hard_negatives": 1, "hard_negative_ranks": "5-10"}, []),
        ({"architecture": "convert", "number_turns": True}, ["number_turns"]),
        ({"architecture": "convert", "number_turns": True, "extra_contexts": 10}, []),
    ],
)
def test_settings_that_nothing_reads_are_told(given, unread):
    start = "vocabulary" if given.get("architecture") == "convert" else "backbone"
    settings = RunSettings(**{"train": "a", "out": "b", start: "c", **given})
    assert [line.partition(" ")[0] for line in settings.unread()] == unread


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"distillation_weight": 2.0}, "distillation_weight"),
        ({"distillation_temperature": 0.0}, "distillation_temperature"),
        ({"hard_negatives": 2, "hard_negative_ranks": "5-5"}, "hard_negative_ranks"),
        ({"hard_negatives": 2, "candidates": "inline"}, "hard_negatives"),
        ({"hard_negatives": 2, "architecture": "cross", "candidates": "batch"}, "hard_negatives"),
        ({"accumulate": 0}, "accumulate"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_settings_that_cannot_be_are_an_error_at_once(given, argument):
    with pytest.raises(ConfigError) as error:
        RunSettings(train="a", out="b", backbone="c", **given)
    assert error.value.argument == argument
