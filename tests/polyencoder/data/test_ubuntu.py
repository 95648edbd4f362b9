"""Rows of the Ubuntu corpus: turns of utterances, wrong rows, errors."""

from __future__ import annotations

import pytest

from polyencoder.data.ubuntu import is_ubuntu, parse_ubuntu_turns
from polyencoder.errors import InputError

ROW = {
    "Context": "hi  all __eou__ help __eou__ __eot__ no\n, __eou__ how ? __eou__ __eot__",
    "Utterance": " so __eou__ ",
}


@pytest.mark.parametrize(
    ("fields", "turns"),
    [
        ({}, ["hi all help", "no , how ?", "so"]),
        ({"Context": "a  b __eou__ __eot__", "Label": "1.0"}, ["a  b", "so"]),
        ({"Utterance": " __eou__ __eot__"}, ["hi all help", "no , how ?", ""]),
        ({"Label": "0.0"}, None),
    ],
)
def test_turns_and_the_response_behind_them(fields, turns):
    assert is_ubuntu(ROW | fields)
    assert parse_ubuntu_turns(ROW | fields, "a.csv, line 2") == turns


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"Label": "0_1"}, "a.csv, line 2: the label is '0_1', neither 0 nor 1"),
        (ROW | {"Label": "0.7"}, "a.csv, line 2: the label is '0.7', neither 0 nor 1"),
        (ROW | {"Label": None}, "a.csv, line 2: the label is None, neither 0 nor 1"),
        (ROW | {"Context": None}, "a.csv, line 2: 'Context' is None, not a text"),
        ({"Context": "a"}, "has no column 'Ground Truth Utterance'; it has 'Context'"),
        ({"Context": "a", "Label": "1"}, "has no column 'Utterance'; it has 'Context', 'Label'"),
    ],
)
def test_what_is_no_row(row, message):
    with pytest.raises(InputError, match=message):
        parse_ubuntu_turns(row, "a.csv, line 2")
