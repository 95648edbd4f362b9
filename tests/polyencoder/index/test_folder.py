from __future__ import annotations

import shutil
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import polyencoder.index.folder as folder_module
from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.base import Candidate
from polyencoder.index.build import build_index
from polyencoder.index.folder import FolderIndex, remove_index
from polyencoder.index.meta import META, UNFINISHED, Fingerprints, IndexMeta

CONTEXTS = [["hello , how are you ?"], ["do you ski ?", "no , i have two dogs ."]]


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.fixture
def candidates(sentences) -> list[Candidate]:
    """Eight texts, the first two of them under a second id."""
    once = [Candidate(str(i), text, {"n": i, "even": i % 2 == 0}) for i, text in enumerate(sentences)]
    return [*once, Candidate("twin 0", sentences[0], {"n": 0}), Candidate("twin 1", sentences[1])]


@pytest.fixture
def folder(tmp_path, ranker, candidates) -> Path:
    build_index(tmp_path / "index", candidates, ranker, shard_size=3, model_name="models/mine")
    return tmp_path / "index"


@pytest.fixture
def index(folder, ranker) -> FolderIndex:
    return FolderIndex.open(folder, ranker)


@pytest.fixture
def contexts(ranker):
    return ranker.encode_contexts(CONTEXTS)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_finds(index: FolderIndex, ranker, expected: dict[str, tuple[str, dict | None]], **filter) -> None:
    """Searching gives all of `expected`, {id: (text, metadata)}, with the scores that ranking gives, best first."""
    assert len(index) >= len(expected)
    results = index.search(ranker.encode_contexts(CONTEXTS), top_k=len(index), filter=filter or None)
    for context, hits in zip(CONTEXTS, results, strict=True):
        assert {hit.id: (hit.text, hit.metadata) for hit in hits} == expected
        assert len(hits) == len(expected)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        ranked = ranker.score([context], [hit.text for hit in hits])[0] if hits else torch.empty(0)
        torch.testing.assert_close(torch.tensor(scores), ranked, rtol=1e-4, atol=1e-3)
        assert {hit.found for hit in hits} <= {"exact"}


def as_dict(candidates) -> dict[str, tuple[str, dict | None]]:
    return {c.id: (c.text, c.metadata) for c in candidates}


@pytest.mark.parametrize("architecture", ["bi", "poly"])
@pytest.mark.parametrize("fields", [{}, {"poly_attention": "sqrt"}])
def test_a_search_is_a_ranking_of_all(tmp_path, make_ranker, candidates, architecture, fields):
    ranker = make_ranker(architecture, **fields)
    build_index(tmp_path / "index", candidates, ranker, shard_size=3)
    assert_finds(FolderIndex.open(tmp_path / "index", ranker), ranker, as_dict(candidates))


def test_the_first_k(index, contexts):
    everything = index.search(contexts, top_k=len(index))
    for k in range(1, len(index)):
        for few, all_hits in zip(index.search(contexts, top_k=k), everything, strict=True):
            assert [hit.id for hit in few] == [hit.id for hit in all_hits[:k]]  # twins that share a row are cut too


@pytest.mark.parametrize("k", [0, -1, 11])
def test_more_than_there_are(index, contexts, k):
    with pytest.raises(InputError, match=f"top_k is {k}; the index has 10 candidates"):
        index.search(contexts, top_k=k)


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({"even": True}, "0246"),
        ({"n": [0, 3]}, ["0", "3", "twin 0"]),
        ({"n": 0, "even": None}, ["twin 0"]),
        ({"n": 99}, []),
    ],
)
def test_a_filter(index, ranker, candidates, filter, ids):
    assert_finds(index, ranker, as_dict(c for c in candidates if c.id in list(ids)), **filter)


def test_fingerprints_are_enough_to_search(folder, ranker, index, contexts):
    searched = FolderIndex.open(folder, Fingerprints.of(ranker), attention=ranker.model.config.poly_attention)
    assert searched.search(contexts, top_k=3) == index.search(contexts, top_k=3)
    searched.remove(["0"])
    searched.update([Candidate("1", candidates_text := "do you have any pets ?", None)])  # a text that is there
    assert candidates_text in {hit.text for hit in searched.search(contexts, top_k=9)[0]}
    with pytest.raises(InputError, match="opened without its model, which new texts need"):
        searched.add([Candidate("new", "a text that is new")])
    assert len(searched) == 9


class TestOpening:
    def test_another_model(self, folder, make_ranker):
        with pytest.raises(CheckpointError, match="made by another model, models/mine .*weights .*polyencoder index"):
            FolderIndex.open(folder, make_ranker("poly", seed=1))

    def test_another_tokenizer(self, folder, ranker, make_ranker, text_config):
        other = make_ranker("poly", text=replace(text_config, label_truncate=9))
        with pytest.raises(CheckpointError, match="made by another model, models/mine .*another tokenizer"):
            FolderIndex.open(folder, other)

    def test_a_bi_encoder_with_the_same_candidates(self, folder, make_ranker):
        """What is on the contexts' side does not matter."""
        bi = make_ranker("bi")
        assert len(FolderIndex.open(folder, bi).search(bi.encode_contexts(CONTEXTS), top_k=2)[0]) == 2

    def test_no_index(self, tmp_path, ranker):
        with pytest.raises(CheckpointError, match="nowhere: no index .*make one by `polyencoder index"):
            FolderIndex.open(tmp_path / "nowhere", ranker)

    def test_one_that_is_not_finished(self, folder, ranker):
        (folder / META).rename(folder / UNFINISHED)
        with pytest.raises(CheckpointError, match="not finished; run the command that began it again"):
            FolderIndex.open(folder, ranker)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"dim": 3}', '{"format_version": 1, "dim": 3}'])
    def test_damaged_meta(self, folder, ranker, text):
        (folder / META).write_text(text)
        with pytest.raises(CheckpointError, match="meta.json: (damaged|not the description of an index)"):
            FolderIndex.open(folder, ranker)

    def test_a_newer_version(self, folder, ranker, edit_json):
        edit_json(folder / META, format_version=2)
        with pytest.raises(CheckpointError, match="format version 2, but this version of polyencoder reads 1"):
            FolderIndex.open(folder, ranker)

    def test_meta_with_values_of_another_type(self, folder, ranker, edit_json):
        edit_json(folder / META, dtype="float8")
        with pytest.raises(CheckpointError, match="damaged.*float8"):
            FolderIndex.open(folder, ranker)

    def test_neither_vectors_nor_texts_are_read(self, folder, ranker):
        """A gigabyte of vectors (a file with a hole), ten million texts of which there is only the last."""
        rows, dim = 10_000_000, 16
        for path in folder.glob("vectors-*"):
            path.unlink()
        with open(folder / "vectors-000000000000.npy", "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + rows * dim * 4)
        with sqlite3.connect(folder / "catalogue.sqlite") as connection:
            connection.execute("INSERT INTO texts VALUES (?, x'00', 'last')", (rows - 1,))
        connection.close()
        fingerprints = Fingerprints.of(ranker)
        start = time.perf_counter()
        index = FolderIndex.open(folder, fingerprints)
        assert time.perf_counter() - start < 0.5
        assert len(index.vectors) == rows


class TestChanging:
    def test_added_is_found(self, index, ranker, candidates, folder):
        new = [Candidate("x", "a new one", {"n": 1}), Candidate("y", candidates[0].text), Candidate("z", "a new one")]
        index.add(new)
        assert_finds(index, ranker, as_dict([*candidates, *new]))
        assert_finds(FolderIndex.open(folder, ranker), ranker, as_dict([*candidates, *new]))
        assert {p.name for p in folder.glob("vectors-*")} == {f"vectors-{n:012d}.npy" for n in (0, 3, 6, 8)}

    def test_adding_in_steps(self, index, ranker, candidates):
        new = [Candidate(f"new {i}", f"new text {i}") for i in range(8)]  # steps of 3
        index.add(iter(new))
        assert_finds(index, ranker, as_dict([*candidates, *new]))

    def test_only_new_texts_are_encoded(self, monkeypatch, index, candidates):
        encoded = []
        original = folder_module.encode_candidates
        monkeypatch.setattr(
            folder_module, "encode_candidates", lambda m, t, texts, **_: encoded.extend(texts) or original(m, t, texts)
        )
        index.add([*candidates, Candidate("x", candidates[0].text), Candidate("y", "new"), Candidate("z", "new")])
        index.update([Candidate("0", candidates[0].text, {"other": 1}), Candidate("1", "newer")])
        index.compact()
        assert encoded == ["new", "newer"]

    def test_a_removed_text_comes_back_without_encoding(self, index, ranker, candidates, folder):
        index.remove(["3"])
        assert_finds(index, ranker, as_dict(c for c in candidates if c.id != "3"))
        index.add([candidates[3]])
        assert_finds(index, ranker, as_dict(candidates))
        assert len(list(folder.glob("vectors-*"))) == 3

    @pytest.mark.parametrize(
        ("change", "argument", "message"),
        [
            ("add", Candidate("0", "other"), "the id '0' is that of candidate 1 already"),
            ("remove", "nobody", "no candidate has the id 'nobody'"),
            ("update", Candidate("nobody", "text"), "no candidate has the id 'nobody'"),
            ("update", Candidate(None, "text", where="f, line 3"), "f, line 3: has no id"),
            ("update", Candidate("0", ""), "its text is empty"),
        ],
    )
    def test_what_cannot_be_changed(self, index, ranker, candidates, change, argument, message):
        with pytest.raises(InputError, match=message):
            getattr(index, change)([argument])
        assert_finds(index, ranker, as_dict(candidates))

    @pytest.mark.parametrize("where", ["encode_candidates", "write_vectors"])
    @pytest.mark.parametrize("after", [True, False])
    def test_killed_while_adding(self, monkeypatch, index, folder, ranker, candidates, where, after):
        def die(*args, **kwargs):
            if after:
                original(*args, **kwargs)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            original = getattr(folder_module, where)
            patch.setattr(folder_module, where, die)
            with pytest.raises(KeyboardInterrupt):
                index.add([Candidate("x", "new"), Candidate("y", "newer")])
        for opened in (index, FolderIndex.open(folder, ranker)):
            assert_finds(opened, ranker, as_dict(candidates))
        index.add([Candidate("z", "something else")])  # takes the row that was begun
        assert_finds(FolderIndex.open(folder, ranker), ranker, as_dict([*candidates, Candidate("z", "something else")]))

    def test_a_change_says_that_it_is_no_longer_what_was_built(self, index, folder, ranker, candidates):
        index.remove(["0"])
        with pytest.raises(InputError, match="was changed since it was built"):
            build_index(folder, candidates, ranker, shard_size=3)

    def test_others_may_search_meanwhile(self, index, folder, ranker, contexts):
        other = FolderIndex.open(folder, ranker)
        index.add([Candidate("new", "new")])
        index.remove(["0", "twin 0"])
        assert "0" not in {hit.id for hit in other.search(contexts, top_k=8)[0]}
        index.compact()
        assert len(other.search(contexts, top_k=8)[0]) == 8  # as it was when it was opened, save what is gone
        with pytest.raises(InputError, match="another process has compacted the index; open it again"):
            other.remove(["1"])


class TestCompacting:
    def test_the_dead_are_gone(self, index, ranker, candidates, folder):
        index.add([Candidate(f"new {i}", f"new text {i}") for i in range(4)])
        index.remove(["0", "2", "twin 0", "new 0"])
        living = {**as_dict(candidates), **{f"new {i}": (f"new text {i}", None) for i in range(4)}}
        for gone in ("0", "2", "twin 0", "new 0"):
            del living[gone]
        index.compact()
        assert len(index.vectors) == 9
        assert_finds(index, ranker, living)
        assert_finds(FolderIndex.open(folder, ranker), ranker, living)
        assert [p.name for p in sorted(folder.parent.iterdir())] == ["index"]
        index.add([Candidate("later", "later")])
        assert_finds(index, ranker, {**living, "later": ("later", None)})

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
    def test_vectors_are_copied_to_the_bit(self, tmp_path, ranker, candidates, dtype):
        build_index(tmp_path / "i", candidates, ranker, shard_size=3, dtype=dtype)
        index = FolderIndex.open(tmp_path / "i", ranker)
        before = index.vectors.take(torch.tensor([0, 2, 3, 4, 5, 6, 7]))
        index.remove(["1", "twin 1"])
        index.compact()
        assert index.vectors.take(torch.arange(7)).equal(before)

    def test_to_nothing(self, index, ranker, folder):
        index.remove([str(i) for i in range(8)])
        index.remove(["twin 0", "twin 1"])
        index.compact()
        assert len(FolderIndex.open(folder, ranker)) == 0
        index.add([Candidate("first", "hello")])
        assert_finds(index, ranker, {"first": ("hello", None)})

    @pytest.mark.parametrize("rename", [1, 2])
    def test_killed_in_between(self, monkeypatch, index, ranker, candidates, folder, rename):
        index.remove(["0"])
        original, calls = Path.rename, iter(range(1, 9))

        def die(self, target):
            if next(calls) == rename:
                raise KeyboardInterrupt
            return original(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", die)
            with pytest.raises(KeyboardInterrupt):
                index.compact()
        again = FolderIndex.open(folder, ranker)
        assert_finds(again, ranker, as_dict(c for c in candidates if c.id != "0"))
        again.compact()
        assert_finds(again, ranker, as_dict(c for c in candidates if c.id != "0"))

    def test_without_any_dead_the_vectors_stay(self, index, folder):
        before = {name: data for name, data in contents(folder).items() if name.startswith("vectors")}
        index.compact()
        assert {name: data for name, data in contents(folder).items() if name.startswith("vectors")} == before


TEXTS = st.sampled_from(["hello", "hi there", "bye", "do you ski ?", "yes"])
IDS = st.sampled_from("abcdef")
METADATA = st.sampled_from([None, {"k": 1}, {"k": 2}])


class AgainstADict(RuleBasedStateMachine):
    """Any sequence of changes leaves what a dict would hold."""

    ranker = None
    folders = None

    @initialize(first=st.tuples(IDS, TEXTS, METADATA), dtype=st.sampled_from(["float32", "bfloat16", "int8"]))
    def build(self, first, dtype):
        self.folder = next(self.folders)
        id_, text, metadata = first
        build_index(self.folder, [Candidate(id_, text, metadata)], self.ranker, shard_size=2, dtype=dtype)
        self.index = FolderIndex.open(self.folder, self.ranker)
        self.oracle = {id_: (text, metadata)}

    @rule(records=st.lists(st.tuples(IDS, TEXTS, METADATA), max_size=5))
    def add(self, records):
        new = {id_: (text, metadata) for id_, text, metadata in records if id_ not in self.oracle}
        self.index.add(Candidate(id_, *value) for id_, value in new.items())
        self.oracle |= new

    @rule(ids=st.sets(IDS))
    def remove(self, ids):
        gone = sorted(ids & self.oracle.keys())
        self.index.remove(gone)
        for id_ in gone:
            del self.oracle[id_]

    @rule(records=st.lists(st.tuples(IDS, TEXTS, METADATA), max_size=4))
    def update(self, records):
        there = [record for record in records if record[0] in self.oracle]
        self.index.update(Candidate(*record) for record in there)
        self.oracle |= {id_: (text, metadata) for id_, text, metadata in there}

    @rule()
    def compact(self):
        self.index.compact()
        assert len(self.index.vectors) == len({text for text, _ in self.oracle.values()})

    @rule()
    def open_again(self):
        self.index = FolderIndex.open(self.folder, self.ranker)

    @invariant()
    def same_as_the_dict(self):
        if not hasattr(self, "index"):
            return
        assert len(self.index) == len(self.oracle)
        contexts = self.ranker.encode_contexts(CONTEXTS)
        for filter in (None, {"k": 1}):
            expected = {i: v for i, v in self.oracle.items() if filter is None or (v[1] or {}).get("k") == 1}
            if self.oracle:
                for hits in self.index.search(contexts, top_k=len(self.oracle), filter=filter):
                    assert {hit.id: (hit.text, hit.metadata) for hit in hits} == expected

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def test_any_sequence_of_changes(tmp_path, ranker):
    AgainstADict.ranker = ranker
    AgainstADict.folders = (tmp_path / str(i) for i in range(10_000))
    run_state_machine_as_test(AgainstADict, settings=settings(max_examples=20, stateful_step_count=15, deadline=None))


def test_meta_survives_the_disk(folder):
    meta = IndexMeta.read(folder)
    meta.write(folder, "copy.json")
    assert IndexMeta.read(folder, "copy.json") == meta
    assert (folder / "copy.json").read_bytes() == (folder / META).read_bytes()


def test_only_an_index_is_removed(folder, tmp_path):
    (folder / "mine.txt").write_text("important")
    with pytest.raises(InputError, match="has mine.txt in it, which belongs to no index"):
        remove_index(folder)
    assert (folder / META).exists()
    (folder / "mine.txt").unlink()
    remove_index(folder)
    assert not folder.exists()
    remove_index(folder)  # there is none
    (tmp_path / "file").write_text("important")
    with pytest.raises(InputError, match="is a file, which belongs to no index"):
        remove_index(tmp_path / "file")
