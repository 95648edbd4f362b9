"""`search` against all scores sorted, in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyencoder.index.vectors import Vectors, quantize, write_vectors
from polyencoder.modeling.multihead import CandidateAttention
from polyencoder.scoring import ContextEncoding
from polyencoder.search import products
from polyencoder.search import scan as module
from polyencoder.search.contexts import Contexts, Keys
from polyencoder.search.scan import round_scores, search
from polyencoder.search.scores import score

pytestmark = pytest.mark.slow

DTYPES = ["float32", "float16", "bfloat16", "int8"]
KINDS = ["any", "near ties", "duplicates", "any length", "tiny", "huge", "at the end of float32"]


@pytest.fixture(autouse=True, scope="module")
def blocks_are_small():
    """Else the few rows of a test would be one block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAX_ROWS", 13)
        patch.setattr(module, "_FIRST_ROWS", 4)
        yield


@pytest.fixture(scope="module")
def make_vectors(tmp_path_factory):
    def make(vectors, *, dtype="float32", files=3):
        """Store vectors [n, dim] in up to `files` files of different sizes."""
        folder = tmp_path_factory.mktemp("index")
        cuts = sorted({0, *np.random.default_rng(len(vectors)).integers(0, len(vectors), files - 1), len(vectors)})
        names = [
            write_vectors(folder, start, *quantize(vectors[start:stop], dtype)).name for start, stop in pairwise(cuts)
        ]
        return Vectors.open(folder, names, dim=vectors.shape[1], dtype=dtype)

    return make


def naive(contexts, vectors, *, attention="basic", allowed=None):
    """Attend, multiply, sort everything, in float64 and rounded as float32: scores and rows, best first."""
    wide, vectors = contexts.vectors.astype(np.float64), vectors.astype(np.float64)
    logits = wide @ vectors.T
    weights = np.zeros_like(logits)
    for context, context_logits in enumerate(logits):
        real = np.ones(len(context_logits), bool) if contexts.mask is None else contexts.mask[context]
        if real.any():
            scaled = context_logits[real] / (vectors.shape[1] ** 0.5 if attention == "sqrt" else 1)
            shares = np.exp(scaled - scaled.max(axis=0))
            weights[context, real] = shares / shares.sum(axis=0)
    scores = round_scores((weights * np.where(weights == 0, 0, logits)).sum(axis=1))
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), order


def check(best, contexts, vectors, *, k, attention="basic", allowed=None):
    """The rows of the naive order; of scores that differ in the last bit alone, either may be first."""
    scores, order = naive(contexts, vectors, attention=attention, allowed=allowed)
    np.testing.assert_allclose(best.scores, scores[:, :k], rtol=2e-7, atol=0)
    for context, rows in enumerate(best.rows):
        of_row = dict(zip(order[context].tolist(), scores[context].tolist(), strict=True))
        assert len({*rows.tolist()}) == k
        np.testing.assert_allclose([of_row[row] for row in rows.tolist()], best.scores[context], rtol=2e-7, atol=0)


def drawn(seed, *, batch, n, codes, dim=8, kind="any", masked=False):
    """Contexts and rows; `kind` says which difficulty they have."""
    random = np.random.default_rng(seed)
    codes_of = random.normal(size=(batch, codes, dim))
    rows = random.normal(size=(n, dim))
    if kind == "near ties":
        rows = rows[:1] + 1e-6 * rows
    elif kind == "duplicates":
        rows = rows[random.integers(0, max(1, n // 4), n)]
    elif kind == "any length":
        rows *= 10.0 ** random.integers(-12, 12, (n, 1))
        rows[random.random(n) < 0.1] = 0
    elif kind == "tiny":
        rows *= 1e-30
        codes_of *= 1e-12
    elif kind == "huge":
        rows *= 1e30
        codes_of *= 1e12
    elif kind == "at the end of float32":
        rows *= 1e28
        codes_of *= 1e10
    mask = None
    if masked:  # perhaps all codes of a context
        mask = random.random((batch, codes)) < 0.7
    return Contexts(codes_of.astype(np.float32), mask), rows.astype(np.float32), random


@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 4),
    n=st.integers(1, 70),
    codes=st.integers(1, 5),
    kind=st.sampled_from(KINDS),
    attention=st.sampled_from(["basic", "sqrt"]),
    share=st.sampled_from([None, 0.1, 0.8, 1.0]),
    masked=st.booleans(),
)
def test_equals_the_naive_ranking(seed, batch, n, codes, kind, attention, share, masked):
    contexts, rows, random = drawn(seed, batch=batch, n=n, codes=codes, kind=kind, masked=masked)
    allowed = None if share is None else random.random(n) < share
    available = n if allowed is None else int(allowed.sum())
    assume(available)
    k = int(random.integers(1, available + 1))
    best = search(contexts, rows, k=k, allowed=allowed, attention=attention)
    check(best, contexts, rows, k=k, attention=attention, allowed=allowed)


@pytest.mark.parametrize(
    ("rows", "codes"), [(1e-25, 1e5), (1e-30, 1e10), (1e-25, 1e20), (1e-20, 1.0), (1e20, 1e-20), (3e37, 1e-45)]
)
@pytest.mark.parametrize("numkong", [True, False])
def test_numbers_whose_squares_vanish(monkeypatch, make_vectors, rows, codes, numkong):
    """Lengths in float32 would be 0, and near ties with them decided by approximate scores."""
    if not numkong:
        monkeypatch.setattr(products, "import_numkong", lambda: None)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        vectors = (rows * (rng.normal(size=64) + 1e-7 * rng.normal(size=(300, 64)))).astype(np.float32)
        contexts = Contexts((codes * rng.normal(size=(2, 1 + 2 * (seed % 2), 64))).astype(np.float32))
        scores, order = naive(contexts, vectors)
        for source in (vectors, make_vectors(vectors)):
            best = search(contexts, source, k=5)
            np.testing.assert_array_equal(best.rows, order[:, :5])
            np.testing.assert_array_equal(best.scores, scores[:, :5])


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 70),
    codes=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    attention=st.sampled_from(["basic", "sqrt"]),
    share=st.sampled_from([None, 0.1, 0.8]),
)
def test_files_are_searched_as_they_are_stored(make_vectors, seed, n, codes, dtype, kind, attention, share):
    assume(dtype != "float16" or kind in KINDS[:3])
    contexts, rows, random = drawn(seed, batch=3, n=n, codes=codes, kind=kind, masked=True)
    vectors = make_vectors(rows, dtype=dtype)
    allowed = None if share is None else random.random(n) < share
    available = n if allowed is None else int(allowed.sum())
    assume(available)
    k = int(random.integers(1, available + 1))
    best = search(contexts, vectors, k=k, allowed=allowed, attention=attention)
    check(best, contexts, vectors.take(np.arange(n)), k=k, attention=attention, allowed=allowed)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
def test_of_equal_scores_the_lowest_row_comes_first(seed, n, data):
    """Whole numbers: products and sums are exact, so equal scores are equal to the last bit."""
    k = data.draw(st.integers(1, n))
    random = np.random.default_rng(seed)
    contexts = Contexts(random.integers(-2, 3, (3, 1, 2)).astype(np.float32))
    rows = random.integers(-2, 3, (n, 2)).astype(np.float32)
    expected = np.argsort(-(contexts.vectors[:, 0] @ rows.T), axis=1, kind="stable")
    np.testing.assert_array_equal(search(contexts, rows, k=k).rows, expected[:, :k])


@pytest.mark.parametrize("attention", ["basic", "sqrt"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("share", [None, 0.2, 0.8])
def test_few_are_scored_once_there_are_enough(monkeypatch, attention, masked, share):
    monkeypatch.setattr(module, "_MAX_ROWS", 1 << 16)
    contexts, rows, random = drawn(0, batch=3, n=4000, codes=6, dim=16, masked=masked)
    allowed = None if share is None else random.random(4000) < share
    scored, exact = [], module._Best._compute_exact
    monkeypatch.setattr(module._Best, "_compute_exact", lambda best, *a: scored.append(len(a[2])) or exact(best, *a))
    best = search(contexts, rows, k=5, attention=attention, allowed=allowed)
    assert 15 <= sum(scored) < 200
    check(best, contexts, rows, k=5, attention=attention, allowed=allowed)


def test_rows_from_worst_to_best():
    """Each block replaces all that was kept."""
    best = search(Contexts(np.ones((1, 1, 1), np.float32)), np.arange(1000.0, dtype=np.float32)[:, None], k=3)
    assert best.rows.tolist() == [[999, 998, 997]]
    assert best.scores.tolist() == [[999, 998, 997]]


def test_scores_have_the_precision_of_the_contexts():
    contexts, rows, _ = drawn(0, batch=2, n=50, codes=3)
    narrow = search(contexts, rows, k=5).scores
    np.testing.assert_array_equal(narrow, narrow.astype(np.float32))
    wide = Contexts(contexts.vectors.astype(np.float64))
    np.testing.assert_allclose(search(wide, rows, k=5).scores, score(wide, rows.astype(np.float64))[
        np.arange(2)[:, None], search(wide, rows, k=5).rows], rtol=1e-12)  # fmt: skip


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("share", [None, 0.5])
def test_under_multi_head_attention(heads, share):
    torch.manual_seed(0)
    with torch.no_grad():
        contexts = Contexts.from_encoding(CandidateAttention(8, heads)(ContextEncoding(torch.randn(3, 4, 8))))
    rows = np.random.default_rng(0).normal(size=(90, 8)).astype(np.float32)
    allowed = None if share is None else np.random.default_rng(1).random(90) < share
    best = search(contexts, rows, k=5, attention="multihead", allowed=allowed)
    scores = score(contexts, rows, attention="multihead")
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    np.testing.assert_array_equal(best.rows, np.argsort(-scores, axis=1, kind="stable")[:, :5])


def test_scores_that_overflow_come_last_under_multi_head_attention():
    queries = np.array([[[1.0, 1.0]], [[1.0, -1.0]]], np.float32)
    contexts = Contexts(queries, keys=Keys(np.zeros((2, 1, 2), np.float32), np.zeros((2, 1), np.float32), heads=1))
    rows = np.array([[-3e38, -3e38], [0, 1]], np.float32)
    best = search(contexts, rows, k=2, attention="multihead")
    assert best.rows.tolist() == [[1, 0], [0, 1]]
    assert best.scores.tolist() == [[1, -np.inf], [0, -1]]


def test_nan_comes_last_but_is_found():
    contexts, rows, _ = drawn(0, batch=2, n=20, codes=2)
    rows[3] = np.nan
    best = search(contexts, rows, k=20)
    assert (best.rows[:, -1] == 3).all()
    assert (best.scores[:, -1] == -np.inf).all()
    assert search(contexts, np.full((5, 8), np.nan, np.float32), k=2).rows.tolist() == [[0, 1], [0, 1]]


def test_a_context_without_codes_scores_zero():
    contexts, rows, _ = drawn(0, batch=1, n=5, codes=2)
    best = search(Contexts(contexts.vectors, np.zeros((1, 2), bool)), rows, k=2)
    assert (best.scores.tolist(), best.rows.tolist()) == ([[0, 0]], [[0, 1]])


def test_many_contexts_share_a_scan(monkeypatch):
    contexts, rows, _ = drawn(0, batch=50, n=60, codes=3)
    together = search(contexts, rows, k=4)
    monkeypatch.setattr(module, "_MAX_QUERIES", 7)
    apart = search(contexts, rows, k=4)
    np.testing.assert_array_equal(apart.rows, together.rows)
    np.testing.assert_array_equal(apart.scores, together.scores)


def test_an_empty_batch():
    best = search(Contexts(np.empty((0, 3, 8), np.float32)), np.ones((5, 8), np.float32), k=2)
    assert best.scores.shape == best.rows.shape == (0, 2)
