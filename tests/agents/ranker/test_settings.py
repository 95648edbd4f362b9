"""ParlAI's arguments of the library's settings: one is declared once, and errors name its flag."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import pytest
from cyclopts import App
from parlai.agents.ranker.launch import add_group_arguments
from parlai.agents.ranker.settings import OTHER_NAMES, add_settings, get_flag, read_settings
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.scripts.train_model import TrainModel

from polyencoder.settings.base import settings
from polyencoder.settings.metadata import Parlai
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import AROUND_BACKBONE, TrainingConfig
from polyencoder.validation import Share


@pytest.fixture(scope="module")
def parser():
    """The parser of `train_model -m polyencoder -t selection:jsonl`, in a group."""
    parser = TrainModel.setup_args()
    parser.add_extra_args(["-m", "polyencoder", "-t", "selection:jsonl"])
    add_group_arguments(parser)
    return parser


@pytest.mark.parametrize("argument", OTHER_NAMES)
def test_each_has_its_flag(argument, parser):
    assert get_flag(argument, parser) == f"--{OTHER_NAMES[argument].replace('_', '-')}"


def test_others_have_the_flag_of_their_name(parser):
    assert get_flag("num_negatives", parser) == "--num-negatives"
    assert get_flag("model_file", parser) == "--model-file"


def test_what_has_no_flag_is_not_named(parser):
    assert get_flag("shard_size", parser) is None
    assert get_flag(None, parser) is None
    assert get_flag("model_file", None) is None


# ---- a new hyperparameter is one line


@settings(panel="Training", in_parlai=True)
class WithFocus(TrainingConfig):
    focus: Annotated[Share, AROUND_BACKBONE] = 0.25
    """How much harder candidates count, with --learning-rate; 100% is not allowed."""


@settings()
class Wider(TrainSettings):
    training: WithFocus = field(default_factory=WithFocus)


def train(settings: Wider) -> Wider:
    return settings


@pytest.mark.slow
def test_it_is_a_flag_with_help(capsys):
    command = App(result_action="return_value")
    command.default(train)
    arguments = ["--train", "a", "--out", "b", "--backbone", "c"]
    assert command([*arguments, "--focus", "0.5"]).training.focus == 0.5
    assert command(arguments).training.focus == 0.25
    command(["--help"])
    assert "--focus" in (help_text := capsys.readouterr().out)
    assert "How much harder candidates count" in help_text


def test_it_is_an_argument_of_parlai():
    parser = ParlaiParser(add_parlai_args=False, add_model_args=False)
    add_settings(parser, Wider, architecture="bi")
    help_text = " ".join(parser.format_help().split())
    assert "--focus FOCUS How much harder candidates count, with --learningrate; 100% is not allowed." in help_text
    assert read_settings(parser.parse_args(["--focus", "0.5"]), WithFocus)["focus"] == 0.5
    assert parser.parse_args([])["focus"] == 0.25
    others = ParlaiParser(add_parlai_args=False, add_model_args=False)
    add_settings(others, Wider, architecture="convert")
    assert "--focus" not in others.format_help(), "only those around a backbone have it"


# ---- what becomes of a declaration


@settings(panel="Scratch", in_parlai=True)
class Scratch(TrainingConfig):
    ours: Annotated[int | None, Parlai("our_number")] = None
    theirs: Annotated[float, Parlai("their_number", theirs=True)] = 1.0
    nobodys: Annotated[float, Parlai(None)] = 1.0
    either: float | Literal["auto"] = "auto"


def test_names_types_and_those_that_parlai_has():
    parser = ParlaiParser(add_parlai_args=False, add_model_args=False)
    add_settings(parser, Scratch, without=["optimizer", "grad_cache"])
    actions = {action.dest: action for action in parser._actions}
    assert actions["our_number"].type is int
    assert actions["label_smoothing"].type is float
    assert actions["hard_negative_ranks"].type is str
    assert actions["hard_negative_ranks"].default == "1-100"
    assert actions["distillation_loss"].choices == ("kl", "margin-mse")
    assert (actions["either"].type("auto"), actions["either"].type("2")) == ("auto", 2.0)
    assert actions.keys().isdisjoint({"their_number", "nobodys", "grad_cache", "embedding_clip", "batchsize", "seed"})


def test_the_way_back_is_of_what_is_read():
    opt = Opt({"our_number": 3, "their_number": 2.0, "teacher_model": None, "distillation_weight": 0.7, "bf16": True})
    assert read_settings(opt, Scratch) == {"ours": 3, "bf16": True}
    opt["teacher_model"] = "t"
    assert read_settings(opt, Scratch) == {"ours": 3, "bf16": True, "teacher": "t", "distillation_weight": 0.7}
    assert TrainingConfig.of(read_settings(opt, TrainingConfig)).precision == "bfloat16"
