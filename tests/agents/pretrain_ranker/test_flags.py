"""Each flag of `-m pretrain_ranker` is followed, or is an error that says why not; and what its defaults are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from parlai.agents.pretrain_ranker import flags
from parlai.agents.pretrain_ranker.model import PretrainingDictionary

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.settings.base import flat_values
from polyencoder.settings.pretrain import PretrainingSettings
from tests.agents.flag_tables import assert_in_one_part, assert_not_supported, flags_of
from tests.agents.pretrain_ranker.conftest import SIZES


def test_every_flag_is_in_the_table_once():
    parts = [flags.OF_THE_ENCODER, ("next", "reduction_type"), flags.UNSUPPORTED]
    assert_in_one_part("pretrain_ranker", parts)
    assert set().union(*parts) <= set(flags_of(model="pretrain_ranker")), "is no flag"


@pytest.mark.parametrize("name", flags.UNSUPPORTED)
def test_what_is_not_supported_is_an_error_that_names_it(name, make, vocabulary):
    assert_not_supported(name, make, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"^no encoder to pre-train: give --vocabulary, .* or --backbone, "),
        (
            {"vocabulary": "nowhere"},
            r"^vocabulary nowhere: no folder of a tokenizer .*train one with `polyencoder vocab`",
        ),
        ({"vocabulary": "one", "backbone": "other"}, r"^--vocabulary one and --backbone other: .*; give one"),
        ({"vocabulary": "one", "reduction_type": "mean"}, r"^--reduction-type mean: is for --next contrastive; leave"),
        (
            {"vocabulary": "one", "next": "contrastive", "batchsize": 1, "datatype": "train"},
            r"^--next contrastive with --batchsize 1: .* give a larger one",
        ),
        ({"vocabulary": "one", "dropout": 1.0}, r"^dropout is 1.0; it must be below 1"),
        ({"vocabulary": "one", "n_layers": 0}, r"^n_layers is 0; it must be at least 1"),
        ({"vocabulary": "one", "n_positions": 4}, r"^n_positions is 4; it must be at least 8"),
    ],
)
def test_what_cannot_be_is_an_error(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_a_share_that_cannot_be_masked(make, vocabulary):
    with pytest.raises(ConfigError, match="mask_probability is 2.0; it must be above 0 and below 1"):
        make(vocabulary=vocabulary, mask_probability=2.0, **SIZES)


def test_an_encoder_keeps_its_sizes(make, backbone_folder):
    backbone = str(backbone_folder("bert"))
    with pytest.raises(CheckpointError, match="--n-layers 3 contradicts --backbone .*, whose encoder has 2: "):
        make(backbone=backbone, n_layers=3)
    with pytest.raises(ConfigError, match="n_positions is 400, more than the 40 of --backbone"):
        make(backbone=backbone, n_positions=400)
    assert make(backbone=backbone, n_positions=30, n_layers=2).opt["n_positions"] == 30
    with pytest.raises(CheckpointError, match=r"^--init-model nowhere: there is no such file"):
        make(init_model="nowhere", backbone=backbone)
    with pytest.raises(CheckpointError, match=r"^--init-model nowhere: there is no such file"):
        PretrainingDictionary({"init_model": "nowhere"})  # a training builds the dictionary first


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({"next": "yes-no"}, {"next": "contrastive"}),
        ({"next": "contrastive"}, {"next": "yes-no"}),
        ({"next": "contrastive", "reduction_type": "mean"}, {"reduction_type": "first"}),
    ],
)
def test_a_model_keeps_its_objective(own, other, make, vocabulary, tmp_path):
    path = str(tmp_path / "model")
    make(vocabulary=vocabulary, **SIZES, **own).save(path)
    ((name, value),) = other.items()
    message = f"--{name.replace('_', '-')} {value} contradicts --model-file {path}, which was trained with {own[name]}"
    with pytest.raises(CheckpointError, match=message):
        make(model_file=path, **other)
    assert make(model_file=path, **own).opt[name] == own[name]
    assert make(model_file=path).opt["next"] == own["next"]
    assert make(init_model=path, **{**own, **other}).opt[name] == value


def test_its_defaults_are_those_of_the_library():
    settings = PretrainingSettings(corpus=("c",), out="o", vocabulary="v", max_steps=1)
    ours, theirs = flags_of(model="pretrain_ranker"), SimpleNamespace(**flat_values(settings))
    others = {"learningrate": "learning_rate", "gradient_clip": "clip", "lr_scheduler": "schedule"}
    for name in ("learningrate", "gradient_clip", "lr_scheduler", "dropout", "attention_dropout", "history_size"):
        assert ours[name].default == getattr(theirs, others.get(name, name)), name
    for name in ("mask_probability", "weight_decay", "max_nonfinite", "next", *flags.OF_THE_ENCODER):
        assert ours[name].default == getattr(theirs, name), name
    assert ours["betas"].default == f"{theirs.beta1},{theirs.beta2}"


@pytest.mark.parametrize("next", ["yes-no", "contrastive"])
def test_the_optimizer_holds_all_of_the_model(next, make, vocabulary):
    """The heads too, which are no part of the ranker that the encoder becomes."""
    agent = make(vocabulary=vocabulary, next=next, **SIZES)
    held = [id(parameter) for group in agent.optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in agent.model.parameters())
