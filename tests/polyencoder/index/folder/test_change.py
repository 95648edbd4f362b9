"""Changing an index folder: what it holds is what a dict would."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest

import polyencoder.index.folder.change as change_module
import polyencoder.index.folder.shards as encoding_module
from polyencoder.errors import ConfigError, InputError, PolyencoderError
from polyencoder.index.entries import Candidate
from polyencoder.index.faiss.file import build_faiss
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.folder.verify import verify

FILES = f"vectors-{12 * '?'}-{16 * '?'}.npy"  # without what is beside them


class TestChanging:
    def test_only_new_texts_are_encoded(self, monkeypatch, index, candidates):
        encode = Mock(wraps=encoding_module.tokenize_candidates)
        monkeypatch.setattr(encoding_module, "tokenize_candidates", encode)
        index.add([*candidates, Candidate("x", candidates[0].text), Candidate("y", "new"), Candidate("z", "new")])
        index.update([Candidate("0", candidates[0].text, {"other": 1}), Candidate("1", "newer")])
        index.compact()
        assert [text for call in encode.call_args_list for text in call.args[1]] == ["new", "newer"]

    def test_a_removed_text_comes_back_without_encoding(self, index, ranker, candidates, folder, assert_finds):
        index.remove(["3"])
        assert_finds(index, ranker, [candidate for candidate in candidates if candidate.id != "3"])
        index.add([candidates[3]])
        assert_finds(index, ranker, candidates)
        assert len(list(folder.glob(FILES))) == 3

    @pytest.mark.parametrize(
        ("change", "argument", "message"),
        [
            ("add", Candidate("0", "other"), "the id '0' belongs to another candidate already"),
            ("remove", "nobody", "no candidate has the id 'nobody'"),
            ("update", Candidate("nobody", "text"), "no candidate has the id 'nobody'"),
            ("update", Candidate(None, "text", where="f, line 3"), "f, line 3: has no id"),
            ("update", Candidate("0", ""), "its text is empty"),
        ],
    )
    def test_what_cannot_be_changed(self, index, ranker, candidates, change, argument, message, assert_finds):
        with pytest.raises(InputError, match=message):
            getattr(index, change)([argument])
        assert_finds(index, ranker, candidates)

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["encode_rows", "write_vectors"])
    @pytest.mark.parametrize("after", [True, False])
    def test_killed_while_adding(self, monkeypatch, index, folder, ranker, candidates, where, after, assert_finds):
        def die(*args, **kwargs):
            if after:
                original(*args, **kwargs)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            original = getattr(change_module, where)
            patch.setattr(change_module, where, die)
            with pytest.raises(KeyboardInterrupt):
                index.add([Candidate("x", "new"), Candidate("y", "newer")])
        for opened in (index, FolderIndex.open(folder, ranker)):
            assert_finds(opened, ranker, candidates)
        index.add([Candidate("z", "something else")])  # takes the row that was begun
        assert_finds(FolderIndex.open(folder, ranker), ranker, [*candidates, Candidate("z", "something else")])
        assert len(list(folder.glob(FILES))) == 4  # nothing is left of it

    def test_killed_and_begun_again(self, monkeypatch, index, folder, ranker, candidates, assert_finds):
        """Whole files of vectors that a killed change has written are not written again."""
        new = [Candidate(f"new {i}", f"new text {i}") for i in range(9)]
        encoded, original = [], encoding_module.tokenize_candidates

        def encode(text, texts, **settings):
            if len(encoded) == 6:
                raise KeyboardInterrupt
            encoded.extend(texts)
            return original(text, texts, **settings)

        with monkeypatch.context() as patch:
            patch.setattr(encoding_module, "tokenize_candidates", encode)
            with pytest.raises(KeyboardInterrupt):
                index.add(new)
            encoded.append("so that it goes on")
            index.add(new)
        assert encoded == [*(c.text for c in new[:6]), "so that it goes on", *(c.text for c in new[6:])]
        assert_finds(FolderIndex.open(folder, ranker), ranker, [*candidates, *new])

    def test_a_change_says_that_it_is_no_longer_what_was_built(self, index, folder, ranker, candidates):
        index.remove(["0"])
        with pytest.raises(InputError, match="was changed after it was built"):
            build_index(folder, candidates, ranker, shard_size=3)

    def test_one_process_at_a_time(self, monkeypatch, index, folder, ranker):
        monkeypatch.setattr("polyencoder.index.folder.files._BUSY_SECONDS", 0.01)
        other = FolderIndex.open(folder, ranker)
        with index.changing():
            with pytest.raises(InputError, match="cannot be changed now; is another process at it"):
                other.remove(["0"])
            index.remove(["0"])
        other.remove(["1"])
        assert {"0", "1"}.isdisjoint(hit.id for hit in index.search(ranker.encode_contexts(["hi"]), top_k=8)[0])

    def test_what_changes_nothing_writes_nothing(self, index, folder, candidates):
        def written() -> dict[str, int]:
            files = (path for path in folder.iterdir() if path.suffix in (".npy", ".json", ".sqlite"))
            return {path.name: path.stat().st_mtime_ns for path in files}

        before, version = written(), index.meta.version
        index.add(candidates)
        index.remove([])
        index.compact()
        assert written() == before
        assert index.meta.version == version


class TestOneChange:
    def test_is_nothing_after_an_error(self, index, folder, ranker, candidates, assert_finds):
        before = {path.name for path in folder.iterdir()}

        def change() -> None:
            with index.changing():
                index.remove(["3"])
                index.compact()
                index.update([Candidate("5", "another text")])
                index.add([Candidate("x", "new"), Candidate("0", "is there")])

        with pytest.raises(InputError, match="the id '0' belongs to"):
            change()
        for opened in (index, FolderIndex.open(folder, ranker)):
            assert_finds(opened, ranker, candidates)
        assert {path.name for path in folder.iterdir()} == before

    def test_with_faiss(self, index, folder, ranker, contexts):
        pytest.importorskip("faiss")
        index.build_faiss("ivf-flat", nlist=1)
        with index.changing():
            index.remove(["0"])
            index.compact()
            index.build_faiss("hnsw")
        assert index.state.faiss.meta.kind == "hnsw"
        assert len(list(folder.glob("faiss*"))) == 1
        with index.changing():
            index.compact()  # nothing to do
            index.remove(["twin 0"])
        assert index.state.faiss.meta.kind == "hnsw"
        assert len(index.search(contexts, top_k=8)[0]) == 8

    def test_no_faiss_index_of_no_vectors(self, index, candidates):
        pytest.importorskip("faiss")
        index.remove([candidate.id for candidate in candidates])
        index.compact()
        for kind in ("auto", "ivf-flat"):
            with pytest.raises(InputError, match="index: there are no vectors to index"):
                index.build_faiss(kind)

    def test_what_faiss_cannot_build_is_refused_before_texts_are_encoded(self, monkeypatch, index, candidates):
        pytest.importorskip("faiss")
        monkeypatch.setattr(encoding_module, "tokenize_candidates", None)
        message = "nlist is 99, which takes 99 rows to train, and there are 9"

        def change():
            with index.changing():
                index.add([Candidate("new", "new")])
                index.build_faiss("ivf-flat", nlist=99)

        with pytest.raises(ConfigError, match=message):
            change()
        assert len(index) == len(candidates)

    def test_what_nobody_could_read_again_is_not_committed(self, monkeypatch, index, folder, ranker, candidates):
        pytest.importorskip("faiss")

        def endless(*args, **settings):  # as of vectors of 1e20
            return replace(build_faiss(*args, **settings), max_norm=float("inf"))

        monkeypatch.setattr("polyencoder.index.folder.change.build_faiss", endless)
        with pytest.raises(PolyencoderError, match="max_norm is inf"):
            index.build_faiss("ivf-flat", nlist=1)
        assert FolderIndex.open(folder, ranker).meta.faiss is None
        assert not list(folder.glob("faiss*"))


class TestCompacting:
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
    def test_vectors_are_copied_to_the_bit(self, tmp_path, ranker, candidates, dtype):
        build_index(tmp_path / "i", candidates, ranker, shard_size=3, dtype=dtype)
        index = FolderIndex.open(tmp_path / "i", ranker)
        before = index.vectors.take(np.array([0, 2, 3, 4, 5, 6, 7]))
        index.remove(["1", "twin 1"])
        index.compact()
        np.testing.assert_array_equal(index.vectors.take(np.arange(7)), before)

    def test_to_nothing(self, index, ranker, folder, assert_finds):
        index.remove([str(i) for i in range(8)])
        index.remove(["twin 0", "twin 1"])
        index.compact()
        assert len(FolderIndex.open(folder, ranker)) == 0
        first = Candidate("first", "hello")
        index.add([first])
        assert_finds(index, ranker, [first])


@pytest.mark.slow
@pytest.mark.parametrize(("shard_size", "lengths"), [(64, [16, 4, 1]), (4, [4, 4, 4, 4, 4, 1])])
def test_single_additions_leave_few_files_with_the_rows_in_order(tmp_path, ranker, shard_size, lengths):
    """Each at least twice as long as the next, if that fits."""
    build_index(tmp_path, [Candidate("first", "hello")], ranker, shard_size=shard_size, dtype="int8")
    index = FolderIndex.open(tmp_path, ranker)
    for i in range(20):
        index.add([Candidate(str(i), f"text {i}")])
    assert [len(np.load(path)) for path in sorted(tmp_path.glob(FILES))] == lengths
    assert index.texts() == ["hello", *(f"text {i}" for i in range(20))]
    stored, exact = index.vectors.take(np.arange(21)), ranker.encode_candidates(index.texts())
    assert (np.abs(stored - exact) <= np.abs(exact).max(1, keepdims=True) / 250 + 1e-6).all()
    verify(tmp_path)


@pytest.mark.slow
def test_any_sequence_of_changes(tmp_path, ranker, check_any_changes):
    folders = (tmp_path / str(i) for i in count())

    def make(first: Candidate, variant: int) -> FolderIndex:
        folder, dtype = next(folders), ("float32", "bfloat16", "int8")[variant % 3]
        build_index(folder, [first], ranker, shard_size=2, dtype=dtype)
        return FolderIndex.open(folder, ranker)

    check_any_changes(make, lambda index: FolderIndex.open(index.folder, ranker), examples=8, steps=15)
