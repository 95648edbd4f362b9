"""The best of equal candidates are the first ones."""

from __future__ import annotations

import pytest
import torch

from polyencoder.scoring import best


@pytest.mark.parametrize("shape", [(7,), (1, 5), (3, 100), (2, 5000)])
@pytest.mark.parametrize("different", [1, 3, 10**6])
def test_the_order_is_that_of_a_stable_sort(shape, different):
    scores = torch.randint(different, shape).float()
    values, columns = scores.sort(dim=-1, descending=True, stable=True)
    for k in (1, 2, 5, shape[-1] + 1):
        found, places = best(scores, k)
        assert torch.equal(found, values[..., :k])
        assert torch.equal(places, columns[..., :k])


def test_a_score_that_is_nan_comes_last():
    values, columns = best(torch.tensor([[torch.nan, 1.0, torch.nan, 2.0]]), 3)
    assert columns.tolist() == [[3, 1, 0]]
    assert values.tolist() == [[2.0, 1.0, -torch.inf]]


def test_infinite_scores_keep_their_places():
    values, columns = best(torch.tensor([-torch.inf, 0.0, torch.inf, -1.0]), 4)
    assert columns.tolist() == [2, 1, 3, 0]
    assert values.tolist() == [torch.inf, 0.0, -1.0, -torch.inf]
