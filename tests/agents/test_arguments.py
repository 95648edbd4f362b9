"""ParlAI's flags for arguments of the library, as the one line of an error names them."""

from __future__ import annotations

import pytest
from parlai.agents.ranker.arguments import OTHER_NAMES, flag_of
from parlai.agents.ranker.launch import add_group_arguments
from parlai.scripts.train_model import TrainModel


@pytest.fixture(scope="module")
def parser():
    """That of `train_model -m polyencoder -t selection:jsonl`, in a group."""
    parser = TrainModel.setup_args()
    parser.add_extra_args(["-m", "polyencoder", "-t", "selection:jsonl"])
    add_group_arguments(parser)
    return parser


@pytest.mark.parametrize("argument", OTHER_NAMES)
def test_each_has_its_flag(argument, parser):
    assert flag_of(argument, parser) == f"--{OTHER_NAMES[argument].replace('_', '-')}"


def test_others_have_the_flag_of_their_name(parser):
    assert flag_of("num_negatives", parser) == "--num-negatives"
    assert flag_of("model_file", parser) == "--model-file"


def test_what_has_no_flag_is_not_named(parser):
    assert flag_of("shard_size", parser) is None
    assert flag_of(None, parser) is None
    assert flag_of("model_file", None) is None
