"""The best of equal candidates are the first ones, whoever asks, and however many pieces they come in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.scoring import best
from polyencoder.scoring.topk import RunningTopK


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


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 3)] * 2), max_size=6), min_size=1, max_size=5), st.integers(1, 8))
def test_pieces_give_the_order_of_the_whole(pieces, k):
    """Two contexts; candidates are numbered in the order in which they come, and few scores differ."""
    running, come = RunningTopK(k), 0
    assert running.best is running.least is None
    for piece in filter(None, pieces):
        running.add(torch.tensor(piece).t().float(), torch.arange(come, come + len(piece)) * 10)
        come += len(piece)
        whole = torch.tensor([pair for some in pieces for pair in some][:come]).t().float()
        values, columns = whole.sort(dim=1, descending=True, stable=True)
        assert torch.equal(running.best.scores, values[:, :k])
        assert torch.equal(running.best.indices, columns[:, :k] * 10)
        if come < k:
            assert running.least is None
        else:
            assert torch.equal(running.least, values[:, k - 1])
