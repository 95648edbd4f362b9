"""Searching in Milvus Lite, beside the paper's formula on all candidates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polyencoder.index.milvus.collection as collection_module
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.milvus import MilvusIndex
from polyencoder.index.rows import Entry, key_of
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
server_manager = pytest.importorskip("milvus_lite.server_manager", reason="this milvus-lite has no server of its own")


class TestSearching:
    @pytest.mark.parametrize("kind", ["auto", "flat"])
    @pytest.mark.parametrize(
        ("architecture", "fields"), [("bi", {}), ("poly", {}), ("poly", {"poly_attention": "sqrt"})]
    )
    def test_as_scoring_all(self, where, make_ranker, many, kind, architecture, fields, assert_best, dialogues):
        ranker = make_ranker(architecture, **fields)
        index = MilvusIndex.create(where, ranker, kind=kind)
        index.add(many)
        contexts = ranker.encode_contexts(dialogues)
        for exactness in ("exact", "certified"):
            found = {"exact", "certified"} if (kind, exactness) == ("flat", "certified") else {"exact"}
            hits = index.search(contexts, top_k=9, exactness=exactness)
            assert_best(hits, ranker, contexts, many, k=9, found=found)
        # At this size a graph finds all that a list of 64 names.
        hits = index.search(contexts, top_k=9, list_length=64)
        found = {"approximate"} if kind == "auto" else {"approximate", "certified"}
        assert_best(hits, ranker, contexts, many, k=9, found=found)

    def test_a_bi_encoder_on_a_flat_collection_is_certified_at_once(
        self, where, make_ranker, many, monkeypatch, assert_best, dialogues
    ):
        ranker = make_ranker("bi")
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.add(many)
        monkeypatch.setattr(index.collection, "pages", None)
        contexts = ranker.encode_contexts(dialogues)
        assert_best(index.search(contexts, top_k=5), ranker, contexts, many, k=5, found={"certified"})

    def test_a_longer_vector_may_break_the_proof(self, where, make_ranker, many, dialogues, monkeypatch):
        """Of a vector long enough rounding alone can hide that it is better."""
        ranker = make_ranker("bi")
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.add(many)
        monkeypatch.setattr(collection_module, "norm_of", lambda _: 1e20)
        index.collection.write([(Entry("long", "long", {}), np.zeros(ranker.model.dim, np.float32))])
        contexts = ranker.encode_contexts(dialogues)
        assert {hit.found for hits in index.search(contexts, top_k=5) for hit in hits} == {"approximate"}
        assert {hit.found for hits in index.search(contexts, top_k=5, exactness="certified") for hit in hits} == {
            "exact"
        }

    @pytest.mark.parametrize("size", [1e-9, 1e-3, 1e6])
    def test_vectors_of_any_length_are_certified(self, where, ranker, size):
        """Norms of a billionth are no zeros to Milvus."""
        torch.manual_seed(0)
        vectors = size * torch.randn(200, 16)
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.collection.write((Entry(str(i), str(i), {}), one.numpy()) for i, one in enumerate(vectors))
        contexts = ContextEncoding(torch.randn(3, 1, 16))
        found = index.search(contexts, top_k=5, exactness="certified")
        assert {hit.found for hits in found for hit in hits} == {"certified"}
        expected = search(Contexts.of(contexts), vectors.numpy(), k=5)
        assert [[int(hit.id) for hit in hits] for hits in found] == expected.rows.tolist()

    def test_what_lists_miss_is_not_certified(self, where, ranker):
        """The best candidate is second in both codes' lists."""
        logits = {"first": (1.0, -1.0), "second": (-1.0, 1.0), "best": (0.9, 0.9)}
        logits |= {f"low {i}": (-float(i), -float(i)) for i in range(9)}
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.collection.write(
            (Entry(name, name, {}), np.array([*pair, *[0.0] * 14], np.float32)) for name, pair in logits.items()
        )
        codes = ContextEncoding(torch.eye(2, 16).unsqueeze(0))
        ((hit,),) = index.search(codes, top_k=1, list_length=1)
        assert (hit.id, hit.found) == (min("first", "second", key=key_of), "approximate")
        ((hit,),) = index.search(codes, top_k=1, list_length=1, exactness="certified")
        assert (hit.id, hit.found) == ("best", "certified")

    def test_few_are_all_fetched(self, index, ranker, contexts, few, assert_best):
        assert_best(index.search(contexts, top_k=3), ranker, contexts, few, k=3, found={"exact"})

    def test_lists_grow_until_they_name_k(self, where, ranker, contexts, many):
        index = MilvusIndex.create(where, ranker)
        index.add(many)
        lengths = []
        nearest = index.collection.nearest
        index.collection.nearest = lambda queries, n, **more: lengths.append(n) or nearest(queries, n, **more)
        hits = index.search(contexts, top_k=60, list_length=5)
        assert {len(some) for some in hits} == {60}
        assert lengths[0] == 5
        assert len(lengths) > 1

    def test_pages_and_groups_of_contexts(self, shared, ranker, contexts, many, monkeypatch):
        expected = shared.search(contexts, top_k=7, exactness="certified")
        monkeypatch.setattr(collection_module, "_ROWS_A_PAGE", 23)
        monkeypatch.setattr("polyencoder.index.row_search._RowSearch.most_named", 1)
        for exactness in ("certified", "exact"):
            hits = shared.search(contexts, top_k=7, exactness=exactness)
            assert [[hit.id for hit in some] for some in hits] == [[hit.id for hit in some] for some in expected]

    def test_masked_codes_do_not_matter(self, shared, ranker, contexts, many, assert_best):
        junk = torch.full((contexts.batch_size, 2, contexts.dim), 1e4)
        mask = torch.ones(contexts.batch_size, contexts.n_codes + 2, dtype=torch.bool)
        mask[:, -2:] = False
        padded = ContextEncoding(torch.cat([torch.from_numpy(contexts.vectors), junk], 1), mask)
        assert_best(
            shared.search(padded, top_k=9, exactness="certified"),
            ranker,
            padded,
            many,
            k=9,
            found={"exact", "certified"},
        )

    def test_as_in_a_folder(self, shared, ranker, contexts, many, tmp_path):
        build_index(tmp_path / "folder", many, ranker)
        for filter in (None, {"n": [1, 4], "even": True}, {"n": None}, {"name": '"1\\'}, {"n": 99}):
            folder = FolderIndex.open(tmp_path / "folder", ranker).search(contexts, top_k=300, filter=filter)
            milvus = shared.search(contexts, top_k=300, filter=filter)
            for one, other in zip(folder, milvus, strict=True):
                assert {hit.id: (hit.text, hit.metadata) for hit in one} == {
                    hit.id: (hit.text, hit.metadata) for hit in other
                }

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("filter", "passes"),
        [
            ({"n": 3}, lambda m: m.get("n") == 3),
            ({"n": [3, 5], "even": False}, lambda m: m.get("n") in (3, 5) and m["even"] is False),
            ({"even": True}, lambda m: m.get("even") is True),
            ({"name": '"2\\'}, lambda m: m.get("name") == '"2\\'),
            ({"name": '" or 1 == 1 or "'}, lambda m: False),
            ({'name"] == "" or metadata["n': 3}, lambda m: False),
            ({"n": None}, lambda m: not m),
            ({"n": [None, 0]}, lambda m: m.get("n", 0) == 0),
            ({"n": []}, lambda m: False),
            ({"n": -1e20}, lambda m: False),
            ({"n": list(range(4, 100))}, lambda m: m.get("n", 0) >= 4),
            ({"n": [2**80, 3]}, lambda m: m.get("n") == 3),
            ({"tags": "odd"}, lambda m: "odd" in m.get("tags", [])),
            ({"tags": [5, '"2\\']}, lambda m: {5, '"2\\'} & {*m.get("tags", [])}),
        ],
    )
    @pytest.mark.parametrize("exactness", ["exact", "certified", None])
    def test_a_filter(self, shared, ranker, contexts, many, filter, passes, exactness, assert_best):
        kept = [c for c in many if passes(c.metadata or {})]
        index = MilvusIndex.open(shared.collection.where, ranker)
        hits = index.search(contexts, top_k=12, filter=filter, exactness=exactness, list_length=40)
        assert_best(hits, ranker, contexts, kept, k=12, found={"exact", "certified", "approximate"})

    def test_more_than_there_are(self, index, contexts):
        assert index.search(contexts, top_k=9) == index.search(contexts, top_k=8)

    @pytest.mark.parametrize("k", [0, -1])
    def test_fewer_than_one(self, index, contexts, k):
        with pytest.raises(InputError, match=rf"top_k is {k} \(int\); it must be at least 1"):
            index.search(contexts, top_k=k)

    def test_what_does_not_fit(self, index, contexts):
        with pytest.raises(InputError, match="do not fit an index of dimension 16"):
            index.search(ContextEncoding(torch.zeros(1, 2, 3)), top_k=1)
        with pytest.raises(ConfigError, match="exactness is 'sure'; it must be one of"):
            index.search(contexts, top_k=1, exactness="sure")
        with pytest.raises(InputError, match=r"list_length is 0 \(int\); it must be at least 1"):
            index.search(contexts, top_k=1, list_length=0)
        with pytest.raises(ConfigError, match="effort is for FAISS, .*; give list_length"):
            index.search(contexts, top_k=1, effort=64)

    def test_no_context(self, index, contexts):
        assert index.search(contexts.select(slice(0, 0)), top_k=1) == []
