"""Searches of rows that an engine proposes, with an engine of a few lines, beside all scores sorted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.index.options import SearchOptions
from polyencoder.index.row_search import _RowSearch, search_rows
from polyencoder.scoring import ContextEncoding, Keys, score
from polyencoder.search.contexts import Contexts
from tests.polyencoder.index.filtering import passes


class Table:
    """Rows in memory: the keys are "000", "001", ..., and the metadata of row i has n = i % 3."""

    longest_list = 40

    def __init__(self, vectors: torch.Tensor, *, exact: bool = True) -> None:
        self.vectors = {f"{row:03}": vector for row, vector in enumerate(vectors.numpy())}
        self.exact = exact
        self.removed: set[str] = set()
        self.requests: list[tuple[int, int]] = []
        self.fetched: list[int] = []

    def _passing(self, filter):
        return [key for key in self.vectors if passes({"n": int(key) % 3}, filter or {})]

    def count(self, filter=None, *, limit=None):
        return min(len(self._passing(filter)), 1 << 30 if limit is None else limit)

    def fetch_rows(self, keys, fields):
        present = sorted({*keys} - self.removed)
        self.fetched += [len(present)] if "vector" in fields else []
        every = {key: {"id": key, "text": f"text {key}", "metadata": {"n": int(key) % 3}} for key in present}
        every = {key: row | {"vector": self.vectors[key]} for key, row in every.items()}
        return {key: {name: row[name] for name in fields} for key, row in every.items()}

    def has_exact_lists(self, available):
        return self.exact

    def search_nearest(self, queries, length, *, filter, effort, exact):
        self.requests.append((len(queries), length))
        keys = self._passing(filter)
        products = queries @ np.stack([self.vectors[key] for key in keys]).T
        return [{keys[i]: float(row[i]) for i in np.argsort(-row, kind="stable")[:length]} for row in products]

    def bound_norm(self):
        return float(max(np.linalg.norm(vector) for vector in self.vectors.values()))

    def iter_pages(self, filter):
        keys = self._passing(filter)
        for first in range(0, len(keys), 7):
            page = keys[first : first + 7]
            yield page, np.stack([self.vectors[key] for key in page])


def drawn(rows: int, codes: int, *, seed: int = 0, contexts: int = 3) -> tuple[torch.Tensor, ContextEncoding]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator), ContextEncoding(
        torch.randn(contexts, codes, 8, generator=generator)
    )


def search_table(table, contexts, attention="basic", **options):
    return search_rows(table, Contexts.from_encoding(contexts), SearchOptions(**options), attention=attention)


def ids(hits):
    return [[int(hit.id) for hit in context_hits] for context_hits in hits]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 90),
    codes=st.integers(1, 4),
    k=st.integers(1, 12),
    length=st.integers(1, 60),
    exactness=st.sampled_from(["exact", "certified", "approximate"]),
    exact=st.booleans(),
)
def test_hits_are_the_best_and_say_how_sure_that_is(seed, rows, codes, k, length, exactness, exact):
    vectors, contexts = drawn(rows, codes, seed=seed)
    table = Table(vectors, exact=exact)
    hits = search_table(table, contexts, top_k=k, list_length=length, exactness=exactness)
    best = score(contexts, vectors).topk(min(k, rows))
    for context_hits, scores, expected in zip(hits, best.values, best.indices.tolist(), strict=True):
        kinds = {hit.found for hit in context_hits}
        assert len(kinds) == 1
        if kinds != {"approximate"}:
            assert [int(hit.id) for hit in context_hits] == expected
            torch.testing.assert_close(torch.tensor([hit.score for hit in context_hits]), scores)
        assert kinds <= {"exact": {"exact"}, "certified": {"exact", "certified"}}.get(
            exactness, {"exact", "certified", "approximate"}
        )
        assert exact or "certified" not in kinds


def test_filters_and_metadata():
    vectors, contexts = drawn(90, 2)
    hits = search_table(Table(vectors), contexts, top_k=5, filter={"n": 1}, list_length=9)
    expected = score(contexts, vectors[1::3]).topk(5).indices * 3 + 1
    assert ids(hits) == expected.tolist()
    assert {(hit.text, hit.metadata["n"]) for context_hits in hits for hit in context_hits} == {
        (f"text {row:03}", 1) for row in expected.flatten().tolist()
    }
    assert search_table(Table(vectors), contexts, filter={"n": 7}) == [[]] * 3
    assert search_table(Table(vectors), contexts.select(slice(0, 0))) == []


def test_equal_scores_come_in_the_order_of_keys():
    _, contexts = drawn(1, 2)
    for exactness in ("exact", "approximate"):
        hits = search_table(Table(torch.ones(60, 8)), contexts, top_k=4, list_length=25, exactness=exactness)
        assert ids(hits) == [[0, 1, 2, 3]] * 3


def test_lists_that_could_name_all_rows_are_not_asked_for():
    vectors, contexts = drawn(40, 2)
    table = Table(vectors)
    assert {hit.found for hits in search_table(table, contexts, list_length=20) for hit in hits} == {"exact"}
    assert table.requests == []


def test_under_multi_head_attention_everything_is_scored():
    vectors, contexts = drawn(90, 4)
    contexts = ContextEncoding(contexts.vectors, keys=Keys(torch.randn(3, 4, 8), torch.randn(3, 4), heads=2))
    table = Table(vectors)
    hits = search_table(table, contexts, attention="multihead", top_k=5, list_length=5)
    assert ids(hits) == score(contexts, vectors, attention="multihead").topk(5).indices.tolist()
    assert table.requests == []


@pytest.mark.parametrize(("exactness", "queries"), [(None, 2), ("certified", 10)])
def test_codes_that_are_alike_ask_together_where_nothing_is_to_be_proven(exactness, queries):
    vectors, _ = drawn(90, 1)
    codes = torch.eye(8)[:2].repeat_interleave(5, dim=0) + 0.01 * torch.randn(1, 10, 8)
    table = Table(vectors)
    search_table(table, ContextEncoding(codes), top_k=2, list_length=4, exactness=exactness)
    assert table.requests[0] == (queries, 4)


def test_contexts_are_searched_in_groups_that_fetch_a_vector_once(monkeypatch):
    vectors, contexts = drawn(90, 2)
    contexts = contexts.select(torch.tensor([0, 0, 1]))
    table = Table(vectors)
    hits = search_table(table, contexts, top_k=3, list_length=4)
    assert table.requests == [(6, 4)]
    assert table.fetched[0] <= 16  # the first two contexts share theirs
    monkeypatch.setattr(_RowSearch, "max_named", 1)
    table.requests.clear()
    assert ids(search_table(table, contexts, top_k=3, list_length=4)) == ids(hits)
    assert table.requests == [(2, 4)] * 3


def test_what_another_process_removes_meanwhile_is_left_out():
    vectors, contexts = drawn(90, 1, contexts=1)
    table = Table(vectors)
    (first, *_), *_ = ids(search_table(table, contexts, top_k=3))
    table.removed = {f"{first:03}"}
    (remaining,) = ids(search_table(table, contexts, top_k=3, list_length=5))
    assert first not in remaining


def test_a_vector_of_unknown_length_proves_nothing():
    vectors, contexts = drawn(90, 1)
    table = Table(vectors)
    assert {hit.found for hits in search_table(table, contexts, top_k=3) for hit in hits} == {"certified"}
    table.bound_norm = lambda: float("inf")
    assert {hit.found for hits in search_table(table, contexts, top_k=3) for hit in hits} == {"approximate"}
