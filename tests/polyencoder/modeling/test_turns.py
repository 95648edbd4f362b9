"""Where turns end, and that a configuration keeps it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyencoder.config import RankerConfig
from polyencoder.modeling.turns import turn_end, turn_numbers

IDS = torch.tensor([[3, 8, 7, 8, 7, 5, 8, 0], [7, 8, 7, 8, 4, 7, 0, 0], [8, 0, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("end", "numbers"),
    [
        # of several tokens, the last of which is also within turns
        ((7, 8), [[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 1, 1, 2, 2, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]),
        (8, [[0, 0, 1, 1, 2, 2, 2, -1], [0, 0, 1, 1, 2, 2, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]),
        (None, [[0, 0, 0, 0, 0, 0, 0, -1], [0, 0, 0, 0, 0, 0, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]),
    ],
)
def test_turns_end_at_whole_separators(end, numbers, make_config):
    assert turn_numbers(IDS, IDS != 0, end=end).tolist() == numbers
    config = replace(make_config("late"), turn_end=end)
    assert RankerConfig.from_json(config.to_json(), origin="here") == config


def test_what_ends_a_turn_is_the_separator():
    assert [turn_end(ids) for ids in ([], [5], [5, 6])] == [None, 5, (5, 6)]
