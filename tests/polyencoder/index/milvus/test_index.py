"""Changing an index in Milvus Lite: what it holds is what a dict would."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import polyencoder.index.milvus.collection as collection_module
import polyencoder.index.milvus.index as index_module
import polyencoder.index.rows as encoding_module
from polyencoder.errors import ConfigError, InputError, PolyencoderError
from polyencoder.index import Fingerprints
from polyencoder.index.entries import Candidate
from polyencoder.index.milvus.index import MilvusIndex
from polyencoder.index.open import describe_index, make_index
from polyencoder.index.rows import Entry, hash_id

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
server_manager = pytest.importorskip("milvus_lite.server_manager", reason="this milvus-lite has no server of its own")

pytestmark = pytest.mark.slow


names = (f"any_{i}" for i in count())


def test_a_database_in_a_file_is_not_remote(index):
    assert not index.remote


class TestChanging:
    def test_only_new_texts_are_encoded_and_each_once(self, monkeypatch, index, sample):
        encode = Mock(wraps=encoding_module.tokenize_candidates)
        monkeypatch.setattr(encoding_module, "tokenize_candidates", encode)
        assert index.add([*sample, Candidate("x", "new"), Candidate("y", "new"), Candidate(None, "new", {"a": 1})]) == 3
        assert index.add(sample) == 0
        changed = [Candidate("x", "new", {"other": 1}), Candidate("y", "newer"), Candidate("id 1", "newer")]
        assert (index.update(changed), index.update(changed)) == (3, 0)
        (vector,) = index.get_vectors(["y", "gone"]).values()
        np.testing.assert_allclose(vector, index._ranker.encode_candidates(["newer"])[0], rtol=1e-5, atol=1e-6)
        assert [text for call in encode.call_args_list for text in call.args[1]] == ["new", "newer"]
        assert len(index) == len(sample) + 3

    def test_given_vectors_in_a_block(self, index, sample):
        """Each change of a block finds what the one before it has made, as outside a block."""
        (stored,) = index.get_vectors([sample[0].id]).values()
        supplied = np.arange(len(stored), dtype=np.float32)
        with index.changing():
            index.put([Candidate(sample[0].id, "another text")])
            index.put([Candidate(sample[0].id, "another text", vector=stored)])
            index.put([Candidate("y", "text", vector=supplied)])
            index.put([Candidate("y", "text", {"a": 1})])
            index.put([Candidate("z", "text", vector=supplied)])
        for id_, vector in ((sample[0].id, stored), ("y", supplied), ("z", supplied)):
            np.testing.assert_array_equal(index.get_vectors([id_])[id_], vector)
        with index.changing():
            index.remove(["y"])
            index.put([Candidate("y", "text")])
            index.put([Candidate("z", "other")])
            index.put([Candidate("z", "text")])
        vectors = index.get_vectors(["y", "z"])
        encoded = index._ranker.encode_candidates(["text"])[0]
        np.testing.assert_allclose([vectors["y"], vectors["z"]], [encoded, encoded], atol=1e-5)

    def test_a_given_vector_is_not_that_of_an_equal_text(self, index):
        """This holds where the candidate of the vector gets another text in the same change, too."""
        supplied = np.arange(16, dtype=np.float32)
        index.put([Candidate("x", "text", vector=supplied), Candidate("y", "other")])
        index.put([Candidate("x", "other"), Candidate("y", "text"), Candidate("z", "text", vector=supplied)])
        vectors = index.get_vectors(["x", "y", "z"])
        encoded = index._ranker.encode_candidates(["other", "text"])
        np.testing.assert_allclose([vectors["x"], vectors["y"]], encoded, atol=1e-5)
        np.testing.assert_array_equal(vectors["z"], supplied)

    def test_the_smallest_difference_of_a_vector_is_a_change(self, index):
        supplied = np.linspace(0.1, 1, 16, dtype=np.float32)
        other = np.nextafter(supplied, np.float32(2))
        changed = [index.put([Candidate("x", "text", vector=vector)]) for vector in (supplied, supplied, other, other)]
        assert changed == [1, 0, 1, 0]
        np.testing.assert_array_equal(index.get_vectors(["x"])["x"], other)

    def test_killed_while_adding(self, monkeypatch, where, ranker, contexts, many, assert_best):
        """What was written stays and is not encoded again; the same call goes on."""
        monkeypatch.setattr(index_module, "ROWS_AT_ONCE", 100)
        index = MilvusIndex.create(where, ranker)

        def dying():
            yield from many[:250]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            index.add(dying())
        assert len(index) == 200
        again = MilvusIndex.create(where, ranker)
        again.add(many)
        assert len(again) == 300
        hits = again.search(contexts, top_k=9, exactness="exact")
        assert_best(hits, ranker, contexts, many, k=9, kinds={"exact"})

    def test_what_cannot_be_changed(self, index, ranker, contexts, sample, assert_best):
        for change, argument, message in (
            ("add", Candidate("id 0", "other", where="f, line 3"), "f, line 3: the id 'id 0' .* has other text: give"),
            ("add", sample[0]._replace(metadata={"other": 1}), "belongs to another candidate .* has other metadata"),
            ("add", Candidate("x", "\ud800"), "not a candidate that Milvus can hold"),
            ("add", Candidate("x", "\u00e9" * 40_000, where="f, line 3"), "f, line 3: .*its text has 80,000 bytes"),
            ("add", Candidate("x" * 70_000, "text"), "its id has 70,000 bytes; Milvus holds at most 65,535"),
            ("add", Candidate("x", "text", {"long": "x" * 70_000}), "its metadata has 70,011 bytes"),
            ("remove", "nobody", "no candidate has the id 'nobody'"),
            ("remove", '"] or id != "', "no candidate has the id"),
            ("update", Candidate("nobody", "text"), "no candidate has the id 'nobody'"),
            ("update", Candidate(None, "text", where="f, line 3"), "f, line 3: has no id"),
        ):
            with pytest.raises(InputError, match=message):
                getattr(index, change)(["id 1" if change == "remove" else sample[1], argument])
            assert_best(index.search(contexts, top_k=8), ranker, contexts, sample, k=8, kinds={"exact"})

    def test_the_longest_that_fits(self, index, contexts):
        index.add([Candidate("x" * 65_535, "y" * 65_535)])
        assert len(index.search(contexts, top_k=9)[0]) == 9

    def test_numbers(self, index):
        for value in (2**64 - 1, 2**64, -(2**63) - 1, 1e23):
            index.add([Candidate(str(value), "text", {"m": value})])
            assert (index.count({"m": value}), index.count({"m": value + 1e20})) == (1, 0)
        deep = {"m": [{"deep": 2**70}], "none": None}
        index.add([Candidate("deep", "deep", deep)])
        assert index.search(index._ranker.encode_contexts(["hi"]), filter={"none": None, "m": []}) == [[]]
        (hits,) = index.search(index._ranker.encode_contexts(["hi"]), top_k=20)
        assert next(hit.metadata for hit in hits if hit.id == "deep") == deep
        with pytest.raises(InputError, match="its metadata have 5,003 fields and values; Milvus holds at most 4,096"):
            index.add([Candidate("x", "text", {"m": [*range(5001)]})])
        with pytest.raises(InputError, match="its metadata m is nan"):
            index.add([Candidate("x", "text", {"m": float("nan")})])

    def test_a_call_that_fails_in_a_block_does_nothing(self, monkeypatch, index, sample):
        """This holds for calls of more than one step, and where the error is caught."""
        monkeypatch.setattr(index_module, "ROWS_AT_ONCE", 2)
        updates = [candidate._replace(text=f"{candidate.text} again") for candidate in sample[:3]]
        new = [Candidate(f"new {i}", "new") for i in range(3)]
        expected = {candidate.id: candidate.text for candidate in sample}
        for change, items, wrong in (
            ("add", new, Candidate("x", "")),
            ("put", updates, Candidate("x", "")),
            ("update", updates, Candidate("nobody", "text")),
            ("remove", [candidate.id for candidate in updates], "nobody"),
        ):
            with index.changing():
                index.add([Candidate(f"before {change}", "before")])
                with pytest.raises(InputError):
                    getattr(index, change)([*items, wrong])
                index.remove([removed_id := list(expected)[3]])
            del expected[removed_id]
            expected[f"before {change}"] = "before"
            assert index.get_texts([*expected, removed_id, *(candidate.id for candidate in new)]) == expected

    def test_a_change_of_another_thread_is_no_part_of_a_block(self, index, sample):
        inside = threading.Event()

        def block() -> None:
            with suppress(ZeroDivisionError), index.changing():
                index.remove([sample[0].id])
                inside.set()
                time.sleep(0.2)  # so that the other begins meanwhile
                _ = 1 / 0

        other = threading.Thread(target=block)
        other.start()
        inside.wait()
        index.add([Candidate("mine", "mine")])
        other.join()
        assert len(index) == len(sample) + 1

    def test_a_write_is_tried_again(self, monkeypatch, index):
        milvus = pytest.importorskip("pymilvus")
        monkeypatch.setattr(collection_module, "_WRITE_PAUSES", (0.0, 0.0))
        upsert, failures = index.collection._client.upsert, iter([True, True, False])

        def busy(*args, **kwargs):
            if next(failures):
                raise milvus.MilvusException(message="channel not available\nmore", retriable=True)
            return upsert(*args, **kwargs)

        monkeypatch.setattr(index.collection._client, "upsert", busy)
        index.add([Candidate("new", "new")])
        assert len(index) == 9
        failures = iter([True] * 3)
        with pytest.raises(PolyencoderError, match=r"Milvus refused the request \(channel not available\)$"):
            index.add([Candidate("newer", "newer")])

    def test_a_bad_request_is_not_tried_again(self, monkeypatch, index):
        upsert, requests = index.collection._client.upsert, []
        monkeypatch.setattr(
            index.collection._client, "upsert", lambda *args, **kw: [requests.append(args), upsert(*args, **kw)]
        )
        with pytest.raises(PolyencoderError, match="Milvus refused the request"):
            index.collection.write([(Entry("x", "too short a vector", {}), np.zeros(3, np.float32))])
        assert len(requests) == 1


def test_any_sequence_of_changes(database, ranker, check_any_changes):
    def make(first: Candidate, variant: int) -> MilvusIndex:
        index = MilvusIndex.create(f"{database}#{next(names)}", ranker, kind=("auto", "flat")[variant % 2])
        index.add([first])
        return index

    check_any_changes(make, lambda index: MilvusIndex.open(index.collection.where, ranker), examples=4, steps=8)


def test_vectors_that_exist(where, make_ranker, sample, assert_best, contexts):
    ranker = make_ranker("poly")
    vectors = ranker.encode_candidates([candidate.text for candidate in sample])
    records = [candidate._replace(vector=vector) for candidate, vector in zip(sample, vectors, strict=True)]
    index = make_index(iter(records), where, Fingerprints(Fingerprints.of(ranker).model), milvus="flat")
    index = make_index(iter(records), where, ranker)  # nothing is new
    hits = index.search(contexts, top_k=3, exactness="certified")
    assert_best(hits, ranker, contexts, sample, k=3, kinds={"exact", "certified"})
    first = torch.from_numpy(contexts.vectors[:, 0])
    scores = torch.from_numpy(vectors) @ first.T
    for context, hits in enumerate(MilvusIndex.open(where).search(first, top_k=3)):
        assert [hit.score for hit in hits] == pytest.approx(scores[:, context].topk(3).values.tolist(), rel=1e-5)
    index.put([Candidate("new", sample[0].text, None, vector=-vectors[0])])  # each candidate has its own
    stored = index.collection.fetch_rows([hash_id("new"), hash_id(sample[0].id)], ["vector"])
    assert torch.tensor(stored[hash_id("new")]["vector"]).equal(-torch.tensor(stored[hash_id(sample[0].id)]["vector"]))
    with pytest.raises(InputError, match="its vector has 3 numbers, not 16"):
        index.add([{"text": "short", "vector": [1, 2, 3]}])
    with pytest.raises(InputError, match="no vector"):
        make_index(iter(sample), f"{where}_2", Fingerprints("theirs"))
    assert len(index) == len(sample) + 1


@pytest.mark.parametrize("kind", ["auto", "flat"])
def test_a_collection_is_of_one_kind_and_says_which(where, ranker, sample, kind):
    index = MilvusIndex.create(where, ranker, kind=kind)
    index.add(sample)
    index.close()
    lines = describe_index(where)
    assert lines[-1].startswith(f"search: Milvus, {kind}: ")
    assert lines[0] == f"{index.address}: 8 candidates"
    MilvusIndex.create(where, ranker, kind=kind).close()
    MilvusIndex.create(where, ranker).close()  # of the kind that it is
    other = {"auto": "flat", "flat": "auto"}[kind]
    with pytest.raises(ConfigError, match=f"exists and is of the kind {kind}, not {other}; give another collection"):
        MilvusIndex.create(where, ranker, kind=other)
