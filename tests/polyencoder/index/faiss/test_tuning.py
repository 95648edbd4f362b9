"""A recall that is asked for is measured, and what reaches it is what searches do."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder.errors import ConfigError, InputError
from polyencoder.index import Candidate, FolderIndex, open_index
from polyencoder.index.faiss import tuning
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.faiss.tuning import tune
from polyencoder.index.open import describe_index
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search
from tests.parameters import mostly_long

pytest.importorskip("faiss", reason="faiss is not installed: pip install 'parlai-polyencoder[faiss]'")

ROWS, DIM = 3000, 16
KINDS = {"hnsw": {"m": 8}, "ivf-flat": {"nlist": 32}, "ivf-pq": {"nlist": 32, "pq_m": 4, "pq_bits": 4}}


@pytest.fixture(scope="module", params=KINDS)
def searcher(request, make_search) -> FaissSearch:
    torch.manual_seed(0)
    return make_search(torch.randn(ROWS, DIM), kind=request.param, **KINDS[request.param])


def drawn(n: int, *, seed: int) -> list[Contexts]:
    """Contexts of six codes that are much alike, as a trained model's are, in two batches."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(n, 1, DIM, generator=generator) + 0.3 * torch.randn(n, 6, DIM, generator=generator)
    return [Contexts(codes[: n // 2].numpy()), Contexts(codes[n // 2 :].numpy())]


def recall_of(searcher: FaissSearch, contexts: list[Contexts], *, k: int = 10, **options) -> float:
    """Recall counted row by row, which the library does not do."""
    hits = 0
    for part in contexts:
        truth = search(part, searcher.vectors, k=k).rows.tolist()
        rows = searcher.search(part, top_k=k, **options).rows.tolist()
        hits += sum(len(set(actual) & set(expected)) for actual, expected in zip(rows, truth, strict=True))
    return hits / (k * sum(part.batch_size for part in contexts))


@pytest.mark.slow
@mostly_long("recall", [0.95, 0.5], quick=1)
def test_the_recall_is_reached_and_used(searcher, recall):
    contexts = drawn(30, seed=1)
    tuned = tune(searcher, contexts, recall=recall)
    assert tuned.reached
    assert tuned.measured - tuned.error >= recall
    options = {"list_length": tuned.list_length, "effort": tuned.effort}
    assert recall_of(searcher, contexts, **options) == pytest.approx(tuned.measured, abs=1e-3)
    # the index's own settings from now on, for other contexts too
    tuned_searcher = FaissSearch(replace(searcher.meta, tuned=tuned), searcher.vectors, index=searcher.index)
    other_contexts = drawn(60, seed=2)
    for part in other_contexts:
        np.testing.assert_array_equal(tuned_searcher.search(part).rows, searcher.search(part, **options).rows)
    assert recall_of(tuned_searcher, other_contexts) >= recall - 0.03


def test_efforts_and_lengths_double_up_to_the_most(searcher):
    limits = {tuning._list_efforts: searcher.max_effort, tuning._list_lengths: min(tuning.LONGEST_LIST, ROWS)}
    for values, highest in ((make(searcher), highest) for make, highest in limits.items()):
        assert values[-1] == highest
        assert values[:-1] == [values[0] << i for i in range(len(values) - 1)]
        assert values[-2] < highest <= 2 * values[-2]


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.5, 0.9, 1.0]))
def test_the_fastest_that_reaches_it_is_chosen(searcher, seed, recall):
    """Recalls and times that grow with effort and length; the reference looks at all pairs."""
    efforts, lengths = tuning._list_efforts(searcher), tuning._list_lengths(searcher)
    torch.manual_seed(seed)
    grown = [torch.rand(len(efforts), len(lengths)).cumsum(0).cumsum(1) for _ in range(2)]
    recalls, seconds = ({(e, n): float(table[i, j] / table[-1, -1]) for i, e in enumerate(efforts) for j, n in
                        enumerate(lengths)} for table in grown)  # fmt: skip
    requests = []

    class Table:
        scan_seconds = 1.0

        def __init__(self, *_, **__): ...

        def __call__(self, effort, list_length):
            requests.append((effort, list_length))
            return np.full(4, recalls[effort, list_length]), seconds[effort, list_length]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_Measure", Table)
        tuned = tune(searcher, drawn(4, seed=0), recall=recall)
    error = {0.2: 0.2, 0.5: 0.25, 0.9: 0.15, 1.0: 0}[recall]  # of four contexts
    rounded = {pair: round(share, 4) for pair, share in recalls.items()}
    enough = [pair for pair, share in rounded.items() if share == 1 or share - error >= recall]
    assert (tuned.effort, tuned.list_length) == min(enough, key=seconds.__getitem__)
    assert len(requests) <= len(efforts) + len(lengths)
    for count, (current, following) in enumerate(pairwise(requests), start=1):
        fastest = min((seconds[pair] for pair in requests[:count] if pair in enough), default=math.inf)
        assert following[1] != current[1] or seconds[current] <= fastest, "more effort only takes longer"


def test_lists_are_measured_also_where_so_few_rows_are_left_that_searches_scan_them(make_search):
    """The same index reaches as little with one row removed as with all of them."""
    torch.manual_seed(0)
    searcher = make_search(torch.randn(6000, DIM), kind="ivf-pq", nlist=2, pq_m=1, pq_bits=1)
    contexts, living = drawn(20, seed=1), np.arange(6000) > 0
    assert (searcher.search(contexts[0], allowed=living).rows > 0).all()
    for allowed in (None, living):
        measure = tuning._Measure(searcher, contexts, top_k=10, allowed=allowed, attention="basic")
        recalls, _ = measure(1, 64)
        assert recalls.mean() < 0.9


@pytest.mark.slow
def test_what_cannot_be_reached(make_search):
    """Searches may look at one of two lists, whose codes are far too short to rank well."""
    torch.manual_seed(0)
    searcher = make_search(torch.randn(20_000, DIM), kind="ivf-pq", nlist=2, pq_m=1, pq_bits=1)
    tuned = tune(searcher, drawn(20, seed=1), recall=1.0)
    assert not tuned.reached
    assert 0.2 < tuned.measured < 1
    assert tuned.list_length == 4096


@pytest.mark.parametrize("recall", [0, -1, 1.01, True, float("nan"), "0.9", None])
def test_what_is_no_recall(searcher, recall):
    with pytest.raises(ConfigError, match="it must be above 0 and at most 1, such as 0.99"):
        tune(searcher, drawn(4, seed=0), recall=recall)


def test_without_contexts(searcher):
    with pytest.raises(InputError, match="there are no contexts to measure recall with"):
        tune(searcher, [], recall=0.9)


def test_without_rows_that_may_be_found(searcher):
    allowed = np.zeros(ROWS, dtype=bool)
    with pytest.raises(InputError, match="there are no candidates to measure recall with"):
        tune(searcher, drawn(4, seed=0), recall=0.9, allowed=allowed)
    allowed[7] = True
    assert tune(searcher, drawn(4, seed=0), recall=1.0, allowed=allowed).measured == 1


@pytest.fixture
def many(ranker, sentences, tmp_path) -> FolderIndex:
    texts = [f"{text} {i}" for i in range(60) for text in sentences]
    return ranker.index([Candidate(str(i), text) for i, text in enumerate(texts)], tmp_path / "many")


CONTEXTS = [["do you ski ?", "no , i have two dogs ."], ["hello"], ["what do you do ?"]]


@pytest.mark.slow
def test_an_index_keeps_what_was_measured(many, ranker, caplog):
    many.build_faiss("ivf-flat", nlist=16, nprobe=1)
    file = many.meta.faiss.file
    assert "recall: not measured" in "\n".join(describe_index(many.folder))
    before, open_all_the_time = many.search(ranker.encode_contexts(CONTEXTS)), FolderIndex.open(many.folder, ranker)
    tuned = many.tune(recall=0.99, contexts=CONTEXTS, source="said.txt")
    assert caplog.messages == []
    assert (tuned.contexts, tuned.source, tuned.rows, tuned.top_k) == (3, "said.txt", len(many), 10)
    for index in (many, open_all_the_time, open_index(many.folder, ranker)):
        assert index.meta.faiss.file == file  # which was not written again
        assert index.meta.faiss.tuned == tuned
        expected = index.search(ranker.encode_contexts(CONTEXTS), effort=tuned.effort, list_length=tuned.list_length)
        assert index.search(ranker.encode_contexts(CONTEXTS)) == expected
        assert index.search(ranker.encode_contexts(CONTEXTS), effort=1, list_length=256) == before
    assert (
        "recall: 0.99 wanted; recall@10 1.0000 (standard error 0.0574, 3 contexts of said.txt) by effort"
        in "\n".join(describe_index(many.folder))
    )
    many.add([Candidate("new", "a new one")])
    assert many.meta.faiss.tuned == tuned
    assert f"measured with {tuned.rows:,} vectors" in "\n".join(describe_index(many.folder))
    many.build_faiss("hnsw")
    assert many.meta.faiss.tuned is None


@pytest.mark.parametrize(("recall", "top_k"), [(1, 10), (np.float32(0.5), np.int64(3))])
def test_numbers_of_any_kind_are_kept_as_numbers(many, ranker, recall, top_k):
    many.build_faiss("hnsw")
    tuned = many.tune(recall=recall, contexts=CONTEXTS, top_k=top_k)
    assert FolderIndex.open(many.folder, ranker).meta.faiss.tuned == tuned
    assert (type(tuned.recall), type(tuned.top_k)) == (float, int)


@pytest.mark.slow
def test_texts_of_the_index_stand_in_for_contexts(many, caplog):
    many.build_faiss("hnsw", m=4)
    many.remove([str(i) for i in range(300)])
    tuned = many.tune(recall=0.8)
    assert "recall is measured with the index's own texts as contexts" in caplog.text
    assert (tuned.contexts, tuned.source) == (len(many), "the index's own texts")


def test_what_cannot_be_tuned(many, ranker, make_ranker, sentences, tmp_path):
    with pytest.raises(ConfigError, match="has no FAISS index to measure"):
        many.tune(recall=0.9)
    many.build_faiss("hnsw")
    with pytest.raises(ConfigError, match="recall is True; it must be above 0"):
        many.tune(recall=True)
    with pytest.raises(InputError, match="top_k is 0"):
        many.tune(recall=0.9, top_k=0)
    with pytest.raises(InputError, match="was opened without its model"):
        FolderIndex.open(many.folder, many.meta.fingerprints).tune(recall=0.9)
    heads = make_ranker("poly", poly_attention="multihead")
    with pytest.raises(ConfigError, match="under multi-head attention every search scores everything"):
        heads.index(sentences, faiss="hnsw", recall=0.9, contexts=["hello"])
