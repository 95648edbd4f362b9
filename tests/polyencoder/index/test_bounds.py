"""The bounds of a score, on random logits and on those where they are reached."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.bounds import lambert_w, score_bounds, score_gap
from polyencoder.scoring import ContextEncoding, score


def score_of(logits, *, attention="basic", dim=1):
    """sum_i p_i l_i, written out."""
    scaled = logits / math.sqrt(dim) if attention == "sqrt" else logits
    return (torch.softmax(scaled, dim=-1) * logits).sum(dim=-1)


@pytest.mark.parametrize("x", [0.0, 1e-12, 0.3, math.e, 100.0, 1e6, 1e300])
def test_lambert_w_inverts(x):
    w = lambert_w(x)
    assert w * math.exp(w) == pytest.approx(x, rel=1e-11)


def test_lambert_w_of_e_is_one():
    assert lambert_w(math.e) == pytest.approx(1.0)


@pytest.mark.parametrize("x", [-0.1, math.inf, math.nan])
def test_lambert_w_of_nonsense_is_refused(x):
    with pytest.raises(InputError, match="lambert_w wants"):
        lambert_w(x)


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=80),
    st.sampled_from(["basic", "sqrt"]),
    st.integers(1, 1024),
)
def test_scores_lie_within_their_bounds(logits, attention, dim):
    logits = torch.tensor(logits, dtype=torch.float64)
    lower, upper = score_bounds(logits, attention=attention, dim=dim)
    found = score_of(logits, attention=attention, dim=dim)
    assert lower - 1e-9 <= found <= upper + 1e-9


@pytest.mark.parametrize("attention", ["basic", "sqrt"])
@pytest.mark.parametrize("codes", [2, 16, 360])
def test_the_lower_bound_is_reached(codes, attention):
    """All other logits below the largest by 1 + W((m - 1) / e), times sqrt(dim) for "sqrt"."""
    dim = 9
    stretch = 3 if attention == "sqrt" else 1
    logits = torch.zeros(codes, dtype=torch.float64)
    logits[0] = stretch * (1 + lambert_w((codes - 1) / math.e))
    lower, _ = score_bounds(logits, attention=attention, dim=dim)
    assert score_of(logits, attention=attention, dim=dim).item() == pytest.approx(lower.item(), abs=1e-9)


def test_the_bounds_are_those_of_the_library_s_score():
    torch.manual_seed(0)
    context, candidates = ContextEncoding(3 * torch.randn(5, 16, 8)), torch.randn(200, 8)
    for attention in ("basic", "sqrt"):
        logits = torch.einsum("bcd,nd->bnc", context.vectors, candidates)
        lower, upper = score_bounds(logits, attention=attention, dim=8)
        found = score(context, candidates, attention=attention)
        assert (lower - 1e-3 <= found).all()
        assert (found <= upper + 1e-3).all()


def test_one_code_leaves_no_gap():
    assert score_gap(1) == 0
    with pytest.raises(InputError, match="at least one code"):
        score_gap(0)
