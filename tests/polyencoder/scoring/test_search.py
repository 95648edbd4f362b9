"""`search` against `score` and a full sort."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.scoring import ContextEncoding, exact, score, search
from polyencoder.scoring.rows import TensorSource


@pytest.fixture(autouse=True, scope="module")
def few_are_scanned_in_low_precision_too():
    """Else the few candidates of a test would all be scored in fp32 at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("polyencoder.scoring.search"), "_WORTH_TWO_PASSES", 0)
        patch.setattr(import_module("polyencoder.scoring.search"), "_FIRST_CHUNK", 4)
        yield


def whole(values):
    """Whole numbers in floats: their products and sums are exact, so equal scores are equal to the last bit."""
    return values.mul(2).round()


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(1, 60),
    st.integers(1, 5),
    st.sampled_from(["basic", "sqrt"]),
    st.sampled_from([None, 1, 30, 200]),
    st.data(),
)
def test_equals_all_scores_sorted(seed, batch, n, codes, attention, max_elements, data):
    torch.manual_seed(seed)
    k = data.draw(st.integers(1, n))
    mask = torch.rand(batch, codes) > 0.3 if data.draw(st.booleans()) else None
    if mask is not None:
        mask[:, 0] = True
    context = ContextEncoding(torch.randn(batch, codes, 8, dtype=torch.float64), mask)
    candidates = torch.randn(n, 8, dtype=torch.float64)
    expected, order = score(context, candidates, attention=attention).sort(dim=1, descending=True)
    found = search(context, candidates, k=k, attention=attention, max_elements=max_elements)
    assert torch.equal(found.indices, order[:, :k])
    torch.testing.assert_close(found.scores, expected[:, :k])


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([None, 1, 30, 200]), st.data())
def test_of_equal_scores_the_lowest_index_comes_first(seed, n, max_elements, data):
    torch.manual_seed(seed)
    k = data.draw(st.integers(1, n))
    context, candidates = ContextEncoding(whole(torch.randn(3, 1, 2))), whole(torch.randn(n, 2))
    _, order = score(context, candidates).sort(dim=1, descending=True, stable=True)
    assert torch.equal(search(context, candidates, k=k, max_elements=max_elements).indices, order[:, :k])
    low = search(context, candidates, k=k, compute_dtype=torch.bfloat16, max_elements=max_elements)
    if 4 * k >= n or n <= 32:  # all candidates are scored again
        assert torch.equal(low.indices, order[:, :k])


@pytest.mark.parametrize("attention", ["basic", "sqrt"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("share", [None, 0.2, 0.8])
def test_few_are_scored_once_there_are_enough(monkeypatch, attention, masked, share):
    """Those that no logit raises above the best so far: what is found is what scoring all of them finds."""
    torch.manual_seed(0)
    mask = torch.rand(3, 6) > 0.3 if masked else None
    if masked:
        mask[:, 0] = True
    context, candidates = ContextEncoding(torch.randn(3, 6, 16), mask), torch.randn(4000, 16)
    allowed = None if share is None else torch.rand(4000) < share
    monkeypatch.setattr(import_module("polyencoder.scoring.search"), "_FIRST_CHUNK", 400)
    scored = []
    attended = exact._attended
    monkeypatch.setattr(
        exact, "_attended", lambda logits, *a, **o: scored.append(len(logits)) or attended(logits, *a, **o)
    )
    found = search(context, candidates, k=5, attention=attention, allowed=allowed)
    assert sum(scored) < (2000 if share is None else 2000 * share + 400) or attention == "sqrt"
    expected = score(context, candidates, attention=attention)
    if allowed is not None:
        expected = expected.masked_fill(~allowed, -torch.inf)
    best = expected.topk(5)
    assert torch.equal(found.indices, best.indices)
    torch.testing.assert_close(found.scores, best.values)


@given(st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 1e3]), st.floats(-1, 1), st.booleans())
def test_no_score_is_above_what_its_logits_say(seed, size, shift, sqrt):
    """In fp32, with all that is rounded: nothing that is better is left out."""
    torch.manual_seed(seed)
    context = ContextEncoding(size * (torch.randn(2, 64, 8) + 4 * shift))
    candidates = torch.randn(50, 8) + 4 * shift
    scale = 8**-0.5 if sqrt else 1.0
    everything = exact.score_chunk(context, candidates, scale=scale)
    least = everything.median(dim=1).values
    scores, kept = exact.score_above(context, candidates, least, scale=scale)
    torch.testing.assert_close(scores, everything[:, kept])
    assert set((everything > least[:, None]).any(dim=0).nonzero().flatten().tolist()) <= set(kept.tolist())


def test_duplicates_are_all_found():
    context = ContextEncoding(torch.randn(2, 1, 4))
    candidates = whole(torch.randn(1, 4)).expand(10, 4)
    assert search(context, candidates, k=10, max_elements=12).indices.tolist() == [list(range(10))] * 2


def test_candidates_from_worst_to_best():
    """Each chunk replaces all that was kept."""
    found = search(ContextEncoding(torch.ones(1, 1, 1)), torch.arange(1000.0).unsqueeze(1), k=3, max_elements=40)
    assert found.indices.tolist() == [[999, 998, 997]]
    assert found.scores.tolist() == [[999, 998, 997]]


def clustered(*, n, codes, contexts, dim=64):
    """Vectors around 20 topics: many close rivals, whose logits are near 16, where bf16 has steps of 1/8."""
    topics = torch.randn(20, dim)
    candidates = topics[torch.randint(20, (n,))] + 0.3 * torch.randn(n, dim)
    vectors = topics[torch.randint(20, (contexts, 1))] + 0.3 * torch.randn(contexts, codes, dim)
    return ContextEncoding(vectors * 0.5), candidates * 0.5


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_bf16_scan_finds_the_same_candidates(stored):
    torch.manual_seed(0)
    context, candidates = clustered(n=3000, codes=16, contexts=30)
    candidates = candidates.to(stored)
    exact = search(context, candidates, k=10)
    found = search(context, candidates, k=10, compute_dtype=torch.bfloat16)
    common = (exact.indices.unsqueeze(2) == found.indices.unsqueeze(1)).any(dim=2).float().mean()
    assert common >= 0.98
    # What both found has the same score: the last scoring is not in bf16.
    same = exact.indices == found.indices
    torch.testing.assert_close(found.scores[same], exact.scores[same], rtol=1e-5, atol=1e-5)
    # Were the bf16 scores to decide, the order would be another one: the case is hard enough to tell.
    rounded = score(context.to(dtype=torch.bfloat16), candidates.bfloat16()).topk(10).indices
    assert (rounded != exact.indices).any()


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
def test_autocast_rounds_no_score(compute_dtype):
    torch.manual_seed(0)
    context, candidates = clustered(n=400, codes=4, contexts=3)
    expected = search(context, candidates, k=10, compute_dtype=compute_dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = search(context, candidates, k=10, compute_dtype=compute_dtype)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.indices, expected.indices)


def test_low_precision_on_both_sides_is_rescored_too():
    torch.manual_seed(0)
    context, candidates = clustered(n=25, codes=4, contexts=3)
    context, candidates = context.to(dtype=torch.bfloat16), candidates.bfloat16()
    exact = search(context.to(dtype=torch.float32), candidates.float(), k=25)
    found = search(context, candidates, k=25)
    assert torch.equal(found.indices, exact.indices)
    torch.testing.assert_close(found.scores, exact.scores)


@pytest.mark.parametrize(("contexts", "at_once"), [(3, 2), (300, 100)])
def test_what_is_scored_again_is_read_within_the_budget(contexts, at_once):
    """256 candidates of each context, whether those are few or many."""
    taken = []

    class Watched(TensorSource):
        def take(self, indices):
            taken.append(len(indices))
            return super().take(indices)

    context, candidates = ContextEncoding(torch.randn(contexts, 1, 8)), torch.randn(2000, 8)
    budget = at_once * 256 * 8
    search(context, Watched(candidates), k=5, compute_dtype=torch.bfloat16, max_elements=budget)
    assert taken == [256 * at_once] * (contexts // at_once) + [256 * (contexts % at_once)] * (contexts % at_once > 0)


def test_memory_mapped_candidates(tmp_path):
    vectors = torch.randn(500, 8)
    mapped = np.memmap(tmp_path / "vectors", dtype=np.float32, mode="w+", shape=(500, 8))
    mapped[:] = vectors.numpy()
    context = ContextEncoding(torch.randn(2, 3, 8))
    found = search(context, torch.from_numpy(mapped), k=5, max_elements=500)
    assert torch.equal(found.indices, search(context, vectors, k=5).indices)


def test_nan_never_wins():
    candidates = torch.randn(20, 4)
    candidates[3] = torch.nan
    context = ContextEncoding(torch.randn(2, 2, 4))
    for compute_dtype in (None, torch.bfloat16):
        found = search(context, candidates, k=20, max_elements=50, compute_dtype=compute_dtype)
        assert (found.indices[:, -1] == 3).all()
        assert (found.scores[:, -1] == -torch.inf).all()
    assert search(context, torch.full((5, 4), torch.nan), k=2).indices.tolist() == [[0, 1], [0, 1]]


def test_few_candidates_are_scored_exactly(monkeypatch):
    """Where most of them would be scored again, bf16 saves nothing, and misses nothing."""
    module = import_module("polyencoder.scoring.search")
    monkeypatch.setattr(module, "_WORTH_TWO_PASSES", 4)
    monkeypatch.setattr(module, "_rescored", lambda *_, **__: pytest.fail("two passes"))
    context, candidates = ContextEncoding(torch.randn(2, 3, 4)), torch.randn(1023, 4)
    exact = search(context, candidates, k=64)
    found = search(context, candidates, k=64, compute_dtype=torch.bfloat16)
    assert torch.equal(found.indices, exact.indices)
    assert torch.equal(found.scores, exact.scores)


def test_no_gradient_is_kept():
    found = search(ContextEncoding(torch.randn(1, 2, 4, requires_grad=True)), torch.randn(5, 4), k=2)
    assert not found.scores.requires_grad


def test_an_empty_batch():
    found = search(ContextEncoding(torch.empty(0, 3, 8)), torch.randn(5, 8), k=2)
    assert found.scores.shape == found.indices.shape == (0, 2)


@pytest.mark.parametrize(("k", "n"), [(0, 5), (-1, 5), (6, 5), (1, 0)])
def test_k_outside_the_candidates_is_refused(k, n):
    with pytest.raises(InputError, match=rf"candidates, {n}; got {k}"):
        search(ContextEncoding(torch.randn(1, 2, 4)), torch.randn(n, 4), k=k)


def test_candidates_for_each_context_are_refused():
    with pytest.raises(InputError, match=r"\[n, dim\]"):
        search(ContextEncoding(torch.randn(2, 2, 4)), torch.randn(2, 5, 4), k=1)
