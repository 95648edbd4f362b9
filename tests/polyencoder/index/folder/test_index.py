"""Searching an index folder, and removing one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.files import DATABASE, remove_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.meta import Fingerprints


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bi", "poly"])
@pytest.mark.parametrize("fields", [{}, {"poly_attention": "sqrt"}])
def test_a_search_is_a_ranking_of_all(tmp_path, make_ranker, candidates, assert_finds, architecture, fields):
    ranker = make_ranker(architecture, **fields)
    build_index(tmp_path / "index", candidates, ranker, shard_size=3)
    assert_finds(FolderIndex.open(tmp_path / "index", ranker), ranker, candidates)


def test_the_first_k(index, contexts):
    everything = index.search(contexts, top_k=len(index))
    for k in range(1, len(index)):
        for hits, all_hits in zip(index.search(contexts, top_k=k), everything, strict=True):
            assert [hit.id for hit in hits] == [hit.id for hit in all_hits[:k]]  # twins that share a row are cut too


def test_more_than_there_are(index, contexts):
    assert index.search(contexts, top_k=11) == index.search(contexts, top_k=10)


VALUES = [None, True, False, 1, 0, 2, 0.5, 2**53, 2**53 + 1, 2**70, 2**70 + 1, -(2**63), "1", "true", "null", "[1]", ""]
VALUES += ["cut", "cut\0 here", "cut\0 there", 'a "quote" \\ and \n é 🙂']


def test_a_filter_tells_all_values_apart(tmp_path, ranker):
    keys = ["k", "a.b", "it's", "back\\slash", "new\nline", "", "é 🙂", "[0]"]
    records = [Candidate(str(i), f"text {i}", dict.fromkeys(keys, value)) for i, value in enumerate(VALUES)]
    others = [Candidate("list", "a list without a 1", {key: [[1]] for key in keys}), Candidate("none", "without")]
    build_index(tmp_path / "index", [*records, *others], ranker)
    index = FolderIndex.open(tmp_path / "index", ranker)
    for key in keys:  # a missing one is None
        assert [index.count({key: value}) for value in VALUES] == [2] + [1] * (len(VALUES) - 1), key
        assert index.count({key: VALUES}) == len(VALUES) + 1
    index.put([Candidate("0", "text 0", {"k": 1})])
    assert [index.count({key: 1}) for key in keys] == [2] + [1] * (len(keys) - 1)


def test_an_id_that_is_half_a_character(index):
    for change in (index.remove, lambda ids: index.update([Candidate(ids[0], "a text")])):
        with pytest.raises(InputError, match="lone surrogate"):
            change(["\ud83d"])


def test_an_id_with_a_nul_is_told_from_its_beginning(tmp_path, ranker):
    records = [{"id": "a\0b", "text": "i ski .", "metadata": {"k": 1}}, {"id": "a", "text": "bye"}]
    with ranker.index(records, tmp_path / "nul") as index:
        assert index.get_texts(["a\0b"]) == {"a\0b": "i ski ."}
        assert index.get_vectors(["a\0b"]).keys() == {"a\0b"}
        (hit,) = ranker.search("hello", index, filter={"k": 1}, diversity=0.5)
        assert hit.id == "a\0b"


def test_its_repr_says_folder_candidates_and_model(index):
    assert repr(index) == f"<FolderIndex {index.folder}, {len(index):,} candidates, model {index.fingerprints.model}>"


def test_changes_are_counted(index):
    same = [Candidate("new", "a"), Candidate("new", "a")]
    assert (index.add(same), index.add(same), index.put([*same, Candidate("new", "b")])) == (1, 0, 1)
    assert (index.update([Candidate("new", "b")]), index.update([Candidate("new", "b", {"n": 1})])) == (0, 1)
    assert (index.remove(["new", "gone"], missing_ok=True), index.remove([])) == (1, 0)
    assert index.remove(["0", "0"]) == 1


def test_texts_of_ids_that_can_be_read_once(index, monkeypatch):
    """A reader of an outdated state asks again, and needs the ids a second time."""
    read = index._database.read
    monkeypatch.setattr(index._database, "read", lambda ask: (read(ask), read(ask))[1])
    assert index.get_texts(iter(["0", "gone"])).keys() == {"0"}


def test_fingerprints_are_enough_to_search(folder, ranker, index, contexts):
    searched = FolderIndex.open(folder, Fingerprints.of(ranker))
    assert searched.search(contexts, top_k=3) == index.search(contexts, top_k=3)
    searched.remove(["0"])
    searched.update([Candidate("1", candidates_text := "do you have any pets ?", None)])  # a text that is there
    assert candidates_text in {hit.text for hit in searched.search(contexts, top_k=9)[0]}
    with pytest.raises(InputError, match="opened without its model, which encodes new texts"):
        searched.add([Candidate("new", "a text that is new")])
    assert len(searched) == 9


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_an_index_that_cannot_be_opened_has_no_connection(folder, make_ranker):
    def connections() -> int:
        links = (os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())
        return sum(link.startswith(str(folder / DATABASE)) for link in links)

    before = connections()
    for other, error in ((make_ranker("poly", seed=1), CheckpointError), (make_ranker("cross"), InputError)):
        with pytest.raises(error) as raised:
            FolderIndex.open(folder, other)
        assert connections() == before
        assert raised.traceback  # which holds the locals of `open`


def test_only_an_index_is_removed(folder, ranker, tmp_path):
    (folder / "mine.txt").write_text("important")
    with pytest.raises(InputError, match="has mine.txt in it, which belongs to no index"):
        remove_index(folder)
    assert len(FolderIndex.open(folder, ranker)) == 10
    (folder / "mine.txt").unlink()
    remove_index(folder)
    assert not folder.exists()
    remove_index(folder)  # there is none
    (tmp_path / "file").write_text("important")
    with pytest.raises(InputError, match="is a file; give another folder"):
        remove_index(tmp_path / "file")


def test_searches_share_a_connection(folder, ranker, contexts, monkeypatch):
    """A search uses an idle connection again: opening the database would take longer than the search."""
    opened, connect = [], sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: opened.append(args) or connect(*args, **options))
    index = FolderIndex.open(folder, ranker)
    index.search(contexts)
    before = len(opened)
    assert before
    for _ in range(3):
        index.search(contexts)
    assert len(opened) == before
