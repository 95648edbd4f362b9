"""`search_shortlists` with an engine of a few lines, whose lists are exact, against all scores sorted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.index.certificate import Shortlist, search_shortlists
from polyencoder.index.rescoring import Rescoring
from polyencoder.scoring import ContextEncoding, score, search


class Engine(Rescoring):
    """The nearest of each code by a matrix product; float64, so that rounding proves nothing wrong."""

    most_named, attention = 1 << 20, "basic"

    def __init__(self, contexts, vectors, *, exact=True):
        self.contexts, self.vectors, self.exact_lists = contexts, vectors, exact
        self.asked: list[tuple[int, int]] = []

    def propose(self, contexts, places, length):
        assert torch.equal(contexts.vectors, self.contexts.vectors[places])
        self.asked.append((contexts.batch_size, length))
        for codes in contexts.vectors:
            best = (codes @ self.vectors.t()).topk(min(length, len(self.vectors)))
            rows = best.indices.unique()
            highest = best.values[:, -1].max().item() if length < len(self.vectors) else -torch.inf
            yield Shortlist(rows, self.vectors[rows], highest + 1e-9 if self.exact_lists else torch.inf)

    def scan(self, contexts):
        return search(contexts, self.vectors, k=self.k)

    def search(self, *, k, **settings):
        self.k = k
        return search_shortlists(self, **settings)


def drawn(seed, *, batch, n, codes, stretch=1.0):
    torch.manual_seed(seed)
    vectors = torch.randn(n, 4, dtype=torch.float64)
    return ContextEncoding(stretch * torch.randn(batch, codes, 4, dtype=torch.float64)), vectors


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
    k = int(torch.randint(1, n + 1, ()))
    engine = Engine(contexts, vectors)
    engine.most_named = int(torch.randint(1, 400, ()))  # of which contexts are asked for together
    answers = engine.search(k=k, exactness="certified", length=length, longest=longest)
    assert all(some == 1 or some * codes * named <= engine.most_named for some, named in engine.asked)
    expected, order = score(contexts, vectors).sort(dim=1, descending=True)
    for answer, scores, rows in zip(answers, expected, order, strict=True):
        assert answer.found in ("certified", "exact")
        assert torch.equal(answer.rows, rows[:k])
        torch.testing.assert_close(answer.scores, scores[:k])


def test_lists_are_doubled_for_who_waits_alone():
    """The second context has its best at the end of one code's list, the first nowhere near it."""
    vectors = torch.cat([torch.eye(2, dtype=torch.float64) * 5, torch.randn(60, 2, dtype=torch.float64).clamp(-1, 1)])
    codes = torch.tensor([[[4.0, 0.0], [4.0, 0.1]], [[0.1, 0.1], [-0.1, 0.1]]], dtype=torch.float64)
    engine = Engine(ContextEncoding(codes), vectors)
    answers = engine.search(k=1, exactness="certified", length=2, longest=64)
    assert engine.asked[0] == (2, 2)
    assert [batch for batch, _ in engine.asked[1:]] == [1] * (len(engine.asked) - 1)
    assert [length for _, length in engine.asked] == [2 << i for i in range(len(engine.asked))]
    assert answers[0].found == "certified"


def test_what_is_never_proven_is_scanned():
    contexts, vectors = drawn(0, batch=2, n=50, codes=8, stretch=0.01)
    engine = Engine(contexts, vectors)
    answers = engine.search(k=1, exactness="certified", length=2, longest=4)
    assert [answer.found for answer in answers] == ["exact"] * 2
    assert [length for _, length in engine.asked] == [2, 4]


@pytest.mark.parametrize("exactness", ["exact", "certified"])
def test_where_no_list_helps_none_is_asked_for(exactness):
    engine = Engine(*drawn(0, batch=2, n=50, codes=3), exact=exactness == "exact")
    answers = engine.search(k=3, exactness=exactness, length=2, longest=64)
    assert [answer.found for answer in answers] == ["exact"] * 2
    assert engine.asked == []


@pytest.mark.parametrize("exactness", ["certified", "approximate"])
def test_a_score_that_reaches_the_bound_is_proven(exactness):
    """Of one code the k-th best is the last of a list of k."""
    engine = Engine(*drawn(0, batch=3, n=50, codes=1))
    engine.propose = lambda *asked: (
        Shortlist(rows, vectors, search(engine.contexts, vectors, k=1).scores[i, 0].item())
        for i, (rows, vectors, _) in enumerate(Engine.propose(engine, *asked))
    )
    answers = engine.search(k=1, exactness=exactness, length=1, longest=1)
    assert [answer.found for answer in answers] == ["certified"] * 3


def test_lists_that_prove_nothing_are_approximate():
    engine = Engine(*drawn(0, batch=2, n=50, codes=3), exact=False)
    answers = engine.search(k=3, exactness="approximate", length=2, longest=64)
    assert [answer.found for answer in answers] == ["approximate"] * 2
    assert [len(answer.rows) for answer in answers] == [3, 3]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_what_no_list_holds_is_merged(seed, batch, n, newer, codes):
    """Candidates that no list holds, of which the best are added to each shortlist."""
    contexts, vectors = drawn(seed, batch=batch, n=n + newer, codes=codes)
    k = int(torch.randint(1, n + newer + 1, ()))
    beside = search(contexts, vectors[n:], k=min(k, newer))
    engine = Engine(contexts, vectors[:n])
    engine.scan = lambda some: search(some, vectors, k=k)
    propose = engine.propose

    def with_newer(part, places, length):
        for place, (rows, _, bound) in zip(places, propose(part, places, length), strict=True):
            rows = torch.cat([rows, beside.indices[place] + n])
            yield Shortlist(rows, vectors[rows], bound)

    engine.propose = with_newer
    answers = engine.search(k=k, exactness="certified", length=3, longest=64)
    for answer, rows in zip(answers, score(contexts, vectors).sort(dim=1, descending=True).indices, strict=True):
        assert torch.equal(answer.rows, rows[:k])
