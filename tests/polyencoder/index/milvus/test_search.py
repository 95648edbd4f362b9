"""Searching in Milvus Lite, beside the paper's formula on all candidates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polyencoder.index.milvus.collection as collection_module
from polyencoder.index.milvus.index import MilvusIndex
from polyencoder.index.rows import Entry
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search
from tests.parameters import mostly_long

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
server_manager = pytest.importorskip("milvus_lite.server_manager", reason="this milvus-lite has no server of its own")

pytestmark = pytest.mark.slow


class TestSearching:
    @pytest.mark.parametrize("kind", ["auto", "flat"])
    @mostly_long(("architecture", "fields"), [("poly", {}), ("bi", {}), ("poly", {"poly_attention": "sqrt"})], quick=1)
    def test_as_scoring_all(self, where, make_ranker, many, kind, architecture, fields, assert_best, dialogues):
        ranker = make_ranker(architecture, **fields)
        index = MilvusIndex.create(where, ranker, kind=kind)
        index.add(many)
        contexts = ranker.encode_contexts(dialogues)
        for exactness in ("exact", "certified"):
            kinds = {"exact", "certified"} if (kind, exactness) == ("flat", "certified") else {"exact"}
            hits = index.search(contexts, top_k=9, exactness=exactness)
            assert_best(hits, ranker, contexts, many, k=9, kinds=kinds)
        # At this size a graph finds all that a list of 64 names.
        hits = index.search(contexts, top_k=9, list_length=64)
        kinds = {"approximate"} if kind == "auto" else {"approximate", "certified"}
        assert_best(hits, ranker, contexts, many, k=9, kinds=kinds)

    def test_a_bi_encoder_on_a_flat_collection_is_certified_at_once(
        self, where, make_ranker, many, monkeypatch, assert_best, dialogues
    ):
        ranker = make_ranker("bi")
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.add(many)
        monkeypatch.setattr(index.collection, "iter_pages", None)
        contexts = ranker.encode_contexts(dialogues)
        assert_best(index.search(contexts, top_k=5), ranker, contexts, many, k=5, kinds={"certified"})

    def test_a_longer_vector_may_break_the_proof(self, where, make_ranker, many, dialogues, monkeypatch):
        """A long vector may be better by less than its scores are rounded."""
        ranker = make_ranker("bi")
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.add(many)
        monkeypatch.setattr(collection_module, "round_norm_up", lambda _: 1e20)
        index.collection.write([(Entry("long", "long", {}), np.zeros(ranker.model.dim, np.float32))])
        contexts = ranker.encode_contexts(dialogues)
        assert {hit.found for hits in index.search(contexts, top_k=5) for hit in hits} == {"approximate"}
        assert {hit.found for hits in index.search(contexts, top_k=5, exactness="certified") for hit in hits} == {
            "exact"
        }

    @pytest.mark.parametrize("size", [1e-9, 1e6])
    def test_vectors_of_any_length_are_certified(self, where, ranker, size):
        """Norms of a billionth are no zeros to Milvus."""
        torch.manual_seed(0)
        vectors = size * torch.randn(200, 16)
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.collection.write((Entry(str(i), str(i), {}), vector.numpy()) for i, vector in enumerate(vectors))
        contexts = ContextEncoding(torch.randn(3, 1, 16))
        results = index.search(contexts, top_k=5, exactness="certified")
        assert {hit.found for hits in results for hit in hits} == {"certified"}
        expected = search(Contexts.from_encoding(contexts), vectors.numpy(), k=5)
        assert [[int(hit.id) for hit in hits] for hits in results] == expected.rows.tolist()

    def test_pages_and_groups_of_contexts(self, shared, ranker, contexts, many, monkeypatch):
        expected = shared.search(contexts, top_k=7, exactness="certified")
        monkeypatch.setattr(collection_module, "_ROWS_A_PAGE", 23)
        monkeypatch.setattr("polyencoder.index.row_search._RowSearch.max_named", 1)
        for exactness in ("certified", "exact"):
            hits = shared.search(contexts, top_k=7, exactness=exactness)
            assert [[hit.id for hit in row] for row in hits] == [[hit.id for hit in row] for row in expected]

    @mostly_long(
        ("filter", "passes"),
        [
            ({"n": 3}, lambda m: m.get("n") == 3),
            ({"n": [3, 5], "even": False}, lambda m: m.get("n") in (3, 5) and m["even"] is False),
            ({'name"] == "" or metadata["n': 3}, lambda m: False),
            ({"tags": [5, '"2\\']}, lambda m: {5, '"2\\'} & {*m.get("tags", [])}),
            ({"n": None}, lambda m: not m),
        ],
        quick=3,
    )
    @pytest.mark.parametrize("exactness", ["exact", "certified", None])
    def test_a_filter(self, shared, ranker, contexts, many, filter, passes, exactness, assert_best):
        passing = [candidate for candidate in many if passes(candidate.metadata or {})]
        index = MilvusIndex.open(shared.collection.where, ranker)
        hits = index.search(contexts, top_k=12, filter=filter, exactness=exactness, list_length=40)
        assert_best(hits, ranker, contexts, passing, k=12, kinds={"exact", "certified", "approximate"})
