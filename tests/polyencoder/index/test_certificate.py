"""`search_shortlists` with an engine of a few lines, whose lists are exact, against all scores sorted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.index.certificate import Shortlist, ShortlistSearch, search_shortlists
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring import score as score_by_torch
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search


class Engine(ShortlistSearch):
    """The nearest of each code by a matrix product; float64, so that rounding proves nothing wrong."""

    max_named, attention = 1 << 20, "basic"

    def __init__(self, contexts, vectors, *, exact=True):
        self.contexts, self.vectors, self.exact_lists = contexts, vectors, exact
        self.requests: list[tuple[int, int]] = []

    def propose(self, contexts, positions, length):
        np.testing.assert_array_equal(contexts.vectors, self.contexts.vectors[positions])
        self.requests.append((contexts.batch_size, length))
        for codes in contexts.vectors:
            products = codes @ self.vectors.T
            order = np.argsort(-products, axis=1)[:, :length]
            rows = np.unique(order)
            highest = np.take_along_axis(products, order[:, -1:], 1).max() if length < len(self.vectors) else -np.inf
            yield Shortlist(rows, self.vectors[rows], highest + 1e-9 if self.exact_lists else np.inf)

    def scan(self, contexts):
        return search(contexts, self.vectors, k=self.k)

    def search(self, *, k, **settings):
        self.k = k
        return search_shortlists(self, **settings)


def drawn(seed, *, batch, n, codes, stretch=1.0):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, 4))
    return Contexts(stretch * random.normal(size=(batch, codes, 4))), vectors


def sorted_scores(contexts, vectors):
    """The scores of torch and the rows, best first."""
    scores = score_by_torch(ContextEncoding(torch.from_numpy(contexts.vectors)), torch.from_numpy(vectors)).numpy()
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), order


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 60),
    st.integers(1, 5),
    st.sampled_from([0.1, 1.0, 4.0]),
    st.integers(1, 9),
    st.integers(1, 80),
)
def test_what_is_certified_is_the_best(seed, batch, n, codes, stretch, length, longest):
    contexts, vectors = drawn(seed, batch=batch, n=n, codes=codes, stretch=stretch)
    k = int(np.random.default_rng(seed).integers(1, n + 1))
    engine = Engine(contexts, vectors)
    engine.max_named = int(
        np.random.default_rng(seed).integers(1, 400)
    )  # limits how many contexts are asked for together
    answers = engine.search(k=k, exactness="certified", length=length, longest=longest)
    assert all(size == 1 or size * codes * named <= engine.max_named for size, named in engine.requests)
    expected, order = sorted_scores(contexts, vectors)
    for answer, scores, rows in zip(answers, expected, order, strict=True):
        assert answer.exactness in ("certified", "exact")
        np.testing.assert_array_equal(answer.rows, rows[:k])
        np.testing.assert_allclose(answer.scores, scores[:k], rtol=1e-9, atol=1e-12)


def test_lists_are_doubled_for_who_waits_alone():
    """The second context has its best at the end of one code's list, the first nowhere near it."""
    vectors = np.concatenate([np.eye(2) * 5, np.random.default_rng(0).normal(size=(60, 2)).clip(-1, 1)])
    codes = np.array([[[4.0, 0.0], [4.0, 0.1]], [[0.1, 0.1], [-0.1, 0.1]]])
    engine = Engine(Contexts(codes), vectors)
    answers = engine.search(k=1, exactness="certified", length=2, longest=64)
    assert engine.requests[0] == (2, 2)
    assert [batch for batch, _ in engine.requests[1:]] == [1] * (len(engine.requests) - 1)
    assert [length for _, length in engine.requests] == [2 << i for i in range(len(engine.requests))]
    assert answers[0].exactness == "certified"


def test_what_is_never_proven_is_scanned():
    contexts, vectors = drawn(0, batch=2, n=50, codes=8, stretch=0.01)
    engine = Engine(contexts, vectors)
    answers = engine.search(k=1, exactness="certified", length=2, longest=4)
    assert [answer.exactness for answer in answers] == ["exact"] * 2
    assert [length for _, length in engine.requests] == [2, 4]


@pytest.mark.parametrize("exactness", ["exact", "certified"])
def test_where_no_list_helps_none_is_asked_for(exactness):
    engine = Engine(*drawn(0, batch=2, n=50, codes=3), exact=exactness == "exact")
    answers = engine.search(k=3, exactness=exactness, length=2, longest=64)
    assert [answer.exactness for answer in answers] == ["exact"] * 2
    assert engine.requests == []


@pytest.mark.parametrize("exactness", ["certified", "approximate"])
def test_a_score_that_reaches_the_bound_is_proven(exactness):
    """With one code the k-th best row is the last of a list of k."""
    engine = Engine(*drawn(0, batch=3, n=50, codes=1))
    engine.propose = lambda *arguments: (
        Shortlist(rows, vectors, search(engine.contexts, vectors, k=1).scores[i, 0].item())
        for i, (rows, vectors, _) in enumerate(Engine.propose(engine, *arguments))
    )
    answers = engine.search(k=1, exactness=exactness, length=1, longest=1)
    assert [answer.exactness for answer in answers] == ["certified"] * 3


def test_lists_that_prove_nothing_are_approximate():
    engine = Engine(*drawn(0, batch=2, n=50, codes=3), exact=False)
    answers = engine.search(k=3, exactness="approximate", length=2, longest=64)
    assert [answer.exactness for answer in answers] == ["approximate"] * 2
    assert [len(answer.rows) for answer in answers] == [3, 3]
