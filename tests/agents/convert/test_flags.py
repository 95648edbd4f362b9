"""Each flag of `-m convert` is followed, or is an error that says why not; and what its defaults are."""

from __future__ import annotations

import pytest
from parlai.agents.convert import flags

from polyencoder.errors import CheckpointError
from polyencoder.modeling.families import CONVERT_SIZES
from polyencoder.settings.base import get_flat_values
from polyencoder.training import TrainSettings
from polyencoder.training.optimizer import build_optimizer
from tests.agents.flag_tables import assert_in_one_part, assert_not_supported, flags_of


def test_every_flag_is_in_the_table_once():
    parts = [CONVERT_SIZES, flags.LEARNING, flags.UNSUPPORTED]
    assert_in_one_part("convert", parts)
    assert set().union(*parts) <= set(flags_of(model="convert")), "is no flag"


@pytest.mark.parametrize("name", flags.UNSUPPORTED)
def test_what_is_not_supported_is_an_error_that_names_it(name, make, vocabulary):
    assert_not_supported(name, make, vocabulary=str(vocabulary))


def test_the_papers_numbers_are_the_defaults():
    def defaults(**options):
        return {name: action.default for name, action in flags_of(model="convert", **options).items()}

    names = {"learningrate": "learning_rate", "lr_scheduler": "schedule", "gradient_clip": "clip"}
    names |= {"batchsize": "batch_size"}
    same = "optimizer weight_decay label_smoothing embedding_clip final_learning_rate warmup_updates dropout"
    names |= {name: name for name in same.split()}
    new = TrainSettings(train="a", out="b", architecture="convert", vocabulary="c")
    assert {name: get_flat_values(new)[ours] for name, ours in names.items()} == {
        name: defaults()[name] for name in names
    }
    further = TrainSettings(train="a", out="b", architecture="convert", init="c")
    fine_tuning = defaults(init_model="c")
    names["max_train_steps"] = "max_updates"
    assert {name: get_flat_values(further)[ours] for name, ours in names.items()} == {
        name: fine_tuning[name] for name in names
    }
    sizes = ("learningrate", "max_train_steps", "batchsize", "dropout")
    assert [fine_tuning[name] for name in sizes] == [0.1, 60_000, 256, 0.2]


def test_the_optimizer_is_the_librarys(small, make):
    agent = make(init_model=str(small()))
    expected = TrainSettings(train="a", out="b", architecture="convert", init="c").training.optimizer
    ours = build_optimizer(agent.ranker, expected)
    assert type(agent.optimizer) is type(ours)
    for group, our_group in zip(agent.optimizer.param_groups, ours.param_groups, strict=True):
        for name in ("weight_decay", "rho", "eps", "clip", "lookup_decay"):
            assert group.get(name) == our_group.get(name), name
        assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in our_group["params"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "trained"),
    [
        ("hidden_size", 512, 16),
        ("attention_limits", "3,5", "2,8"),
        ("head_sizes", "1024,1024,1024", "24,24"),
        ("relative_bias", False, True),
        ("skips", False, True),
    ],
)
def test_a_model_keeps_its_sizes(name, value, trained, small, make):
    start = str(small())
    message = f"--{name.replace('_', '-')} {value} contradicts --init-model {start}, which was trained with {trained}"
    with pytest.raises(CheckpointError, match=message):
        make(init_model=start, **{name: value})
    assert make(init_model=start, **{name: trained}).opt[name] == trained


@pytest.mark.slow
def test_models_of_other_kinds_are_refused(small, make, make_agent, trained):
    path, _ = trained("biencoder")
    with pytest.raises(
        CheckpointError, match="--init-model .* holds a biencoder, not a convert, and neither can .*: use -m biencoder"
    ):
        make(init_model=str(path))
    with pytest.raises(CheckpointError, match="--init-model .* holds a convert, not a biencoder, and neither"):
        make_agent("biencoder", init_model=str(small()))
    with pytest.raises(CheckpointError, match="--model-file .* holds a biencoder, not a convert"):
        make(model_file=str(path))
