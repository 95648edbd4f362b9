"""Maximal marginal relevance against its definition, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.diversity import checked_diversity, marginal_relevance


def values(scores, vectors, chosen, diversity) -> np.ndarray:
    """Of each candidate (1 - d) r - d max cos, with scores r from 0 to 1; -inf of those that were chosen."""

    def cosine(a, b) -> float:
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        return float(a @ b) / lengths if lengths else 0.0

    low, high = min(scores), max(scores)
    found = []
    for place, score in enumerate(scores):
        relevance = (score - low) / (high - low) if high > low else 0.0
        similar = max((cosine(vectors[place], vectors[other]) for other in chosen), default=0.0)
        found.append(-np.inf if place in chosen else (1 - diversity) * relevance - diversity * similar)
    return np.array(found)


@given(data=st.data(), n=st.integers(1, 9), dim=st.integers(1, 3), diversity=st.floats(0, 1), k=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_each_choice_has_the_largest_marginal_relevance(data, n, dim, diversity, k):
    scores = np.array(data.draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n)), dtype=float)
    numbers = st.lists(st.integers(-2, 2), min_size=n * dim, max_size=n * dim)
    vectors = np.array(data.draw(numbers), dtype=float).reshape(n, dim)
    chosen = marginal_relevance(scores, vectors, k=k, diversity=diversity)
    assert len(set(chosen)) == len(chosen) == min(k, n)
    assert chosen[0] == int(np.argmax(scores))
    for step in range(1, len(chosen)):
        left = values(scores, vectors, chosen[:step], diversity)
        assert left[chosen[step]] >= left.max() - 1e-9
    assert marginal_relevance(3 * scores - 7, 2 * vectors, k=k, diversity=diversity) == pytest.approx(chosen)


def test_by_hand():
    """Two that are alike: the worse one comes last with diversity, second without."""
    scores, vectors = np.array([3.0, 2.9, 1.0]), np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    assert marginal_relevance(scores, vectors, k=3, diversity=0.0) == [0, 1, 2]
    assert marginal_relevance(scores, vectors, k=3, diversity=0.6) == [0, 2, 1]
    assert marginal_relevance(scores, vectors, k=2, diversity=1.0) == [0, 2]
    assert marginal_relevance(np.ones(3), np.zeros((3, 2)), k=3, diversity=0.5) == [0, 1, 2]
    assert marginal_relevance(np.zeros(0), np.zeros((0, 2)), k=3, diversity=0.5) == []


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.3"])
def test_what_is_no_diversity(value):
    with pytest.raises(InputError, match="diversity is .*; it must be a number from 0 to 1"):
        checked_diversity(value)
