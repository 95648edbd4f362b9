"""Scores are in the order of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder import InputError
from polyencoder.calibration.probability import sort_best_first
from polyencoder.scoring import select_best


@given(st.lists(st.integers(-2, 2), min_size=1))
def test_equal_scores_stay_in_order(scores):
    _, expected = select_best(torch.tensor([scores], dtype=torch.float32), len(scores))
    assert sort_best_first(np.array(scores, dtype=np.float32)) == expected[0].tolist()


def test_a_nan_is_an_error():
    with pytest.raises(InputError, match="the model's scores are nan"):
        sort_best_first(np.array([1.0, np.nan]))
