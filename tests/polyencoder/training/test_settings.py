"""The settings of a run: defaults that depend on others, and what is given in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.base import get_flat_defaults, get_flat_values
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import TrainingConfig


def test_three_epochs_unless_updates_are_counted():
    assert TrainSettings(train="a", out="b", backbone="c").training.epochs == 3
    assert TrainSettings(train="a", out="b", backbone="c", max_updates=9).training.epochs is None
    assert TrainSettings(train="a", out="b", backbone="c", max_updates=9, epochs=2).training.epochs == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"backbone": "c"},
        {"backbone": "c", "architecture": "cross", "objective": "ranknet", "max_updates": 9, "seed": 3},
        {"vocabulary": "c", "architecture": "convert"},
    ],
)
def test_what_is_not_given_has_its_default(fields):
    settings = TrainSettings(train="a", out="b", **fields)
    values, defaults = get_flat_values(settings), get_flat_defaults(settings)
    assert {name: values[name] for name in values if name not in settings.explicit} == {
        name: defaults[name] for name in values if name not in settings.explicit
    }
    assert "train" not in defaults
    assert defaults["seed"] == 0


@pytest.mark.parametrize(
    ("fields", "unread"),
    [
        ({}, []),
        ({"architecture": "bi", "n_codes": 16}, ["n_codes"]),
        ({"architecture": "bi", "context_vectors": "n_last"}, ["context_vectors"]),
        ({"architecture": "poly", "context_vectors": "n_last", "codes_attention": "sqrt"}, ["codes_attention"]),
        ({"architecture": "poly", "codes_attention": "multihead", "codes_attention_heads": 2}, []),
        (
            {"reduction": "mean", "reduction_outputs": 3, "optimizer": "sgd", "betas": "0,0"},
            ["reduction_outputs", "betas"],
        ),
        ({"architecture": "cross", "n_codes": 16, "grad_cache": 4}, ["n_codes", "grad_cache"]),
        ({"architecture": "cross", "pair_tokens": 99, "share_encoders": True}, ["share_encoders"]),
        ({"pair_tokens": 99, "distillation_weight": 0.1}, ["pair_tokens", "distillation_weight"]),
        ({"architecture": "poly", "teacher": "t", "distillation_weight": 0.1, "n_codes": 16, "grad_cache": 4}, []),
        ({"hard_negative_ranks": "5-10"}, ["hard_negative_ranks"]),
        ({"hard_negatives": 1, "hard_negative_ranks": "5-10"}, []),
        ({"schedule": "plateau", "final_learning_rate": 1e-6}, ["final_learning_rate"]),
        ({"schedule": "cosine", "final_learning_rate": 1e-6}, []),
        ({"architecture": "convert", "schedule": "constant"}, []),
        ({"shuffle_buffer": 9}, ["shuffle_buffer"]),
        ({"shuffle_buffer": 9, "streaming": True, "valid": "v"}, []),
        ({"distillation_temperature": 2.0}, ["distillation_temperature"]),
        (
            {"teacher": "t", "distillation_temperature": 2.0, "distillation_loss": "margin-mse"},
            ["distillation_temperature"],
        ),
        ({"architecture": "convert", "number_turns": True}, ["number_turns"]),
        ({"architecture": "convert", "number_turns": True, "extra_contexts": 10}, []),
    ],
)
def test_settings_that_nothing_reads_are_an_error(fields, unread):
    start = "vocabulary" if fields.get("architecture") == "convert" else "backbone"
    values = {"train": "a", "out": "b", start: "c", **fields}
    while unread:
        with pytest.raises(ConfigError, match=" is read only ") as error:
            TrainSettings(**values)
        assert error.value.argument in unread
        unread = [name for name in unread if name != error.value.argument]
        del values[error.value.argument]
    TrainSettings(**values)


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"distillation_weight": 2.0}, "distillation_weight"),
        ({"bf16": True, "precision": "float32"}, "bf16"),
        ({"hard_negatives": 2, "hard_negative_ranks": "5-5"}, "hard_negative_ranks"),
        ({"hard_negatives": 2, "candidates": "batch-all-cands"}, "hard_negatives"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"final_learning_rate": 1.0}, "final_learning_rate"),
        ({"clip": -1}, "clip"),
        ({"extra_contexts": -2}, "extra_contexts"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"schedule": "steps"}, "schedule"),
        ({"train": 3}, "train"),
        ({"betas": "0.9"}, "betas"),
        ({"betas": "0.9,1"}, "betas"),
    ],
)
def test_settings_that_cannot_be_are_an_error_at_once(fields, argument):
    with pytest.raises(ConfigError) as error:
        TrainSettings(**{"train": "a", "out": "b", "backbone": "c", **fields})
    assert error.value.argument == argument


def test_all_numbers_that_cannot_be_are_told_at_once():
    with pytest.raises(ConfigError, match=r"label_smoothing is 1\.5; .* below 1; and clip is -1"):
        TrainSettings(train="a", out="b", backbone="c", label_smoothing=1.5, clip=-1)
    with pytest.raises(ConfigError, match="batch_size is 0; it must be at least 1; and clip is -1"):
        TrainingConfig(clip=-1.0, batch_size=0)


def test_numbers_and_paths_become_what_their_fields_are():
    settings = TrainSettings(train=Path("a"), out="b", backbone="c", output_scaling=2, learning_rate="5e-5", epochs=2)
    assert settings.data.train == "a"
    training = settings.training
    numbers = (settings.model.output_scaling, training.optimizer.learning_rate, training.epochs)
    assert numbers == (2.0, 5e-5, 2.0)
    assert [type(value) for value in numbers] == [float] * 3


def test_the_architecture_of_init_is_the_default(make_ranker, tmp_path):
    make_ranker("poly").save_pretrained(tmp_path / "poly")
    assert TrainSettings(train="a", out="b", init=str(tmp_path / "poly")).model.architecture == "poly"
    assert TrainSettings(train="a", out="b", init=str(tmp_path / "none")).model.architecture == "bi"
    assert TrainSettings(train="a", out="b", backbone=str(tmp_path / "poly")).model.architecture == "bi"


def test_what_was_given():
    settings = {"train": "a", "out": "b", "backbone": "c"}
    assert TrainSettings(**settings).explicit == set(settings)
    assert TrainSettings(**settings, max_updates=9).explicit == {*settings, "max_updates"}
    assert TrainSettings(**settings, epochs=2).explicit == {*settings, "epochs"}
