"""Opening an index folder: it must be whole, and of this model; little of it is read."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace

import numpy as np
import pytest

from polyencoder.errors import CheckpointError
from polyencoder.index.base import Candidate
from polyencoder.index.faiss_file import build_faiss
from polyencoder.index.folder import FolderIndex
from polyencoder.index.meta import META, UNFINISHED, Fingerprints


def test_another_model(folder, make_ranker):
    with pytest.raises(CheckpointError, match="made by another model, models/mine .*weights .*polyencoder index"):
        FolderIndex.open(folder, make_ranker("poly", seed=1))


def test_another_tokenizer(folder, ranker, make_ranker, text_config):
    other = make_ranker("poly", text=replace(text_config, label_truncate=9))
    with pytest.raises(CheckpointError, match="made by another model, models/mine .*another tokenizer"):
        FolderIndex.open(folder, other)


def test_a_bi_encoder_with_the_same_candidates(folder, make_ranker, dialogues):
    """What is on the contexts' side does not matter."""
    bi = make_ranker("bi")
    assert len(FolderIndex.open(folder, bi).search(bi.encode_contexts(dialogues), top_k=2)[0]) == 2


def test_no_index(tmp_path, ranker):
    with pytest.raises(CheckpointError, match="nowhere: no index .*make one by .*`polyencoder index`"):
        FolderIndex.open(tmp_path / "nowhere", ranker)


def test_one_that_is_not_finished(folder, ranker):
    (folder / META).rename(folder / UNFINISHED)
    with pytest.raises(CheckpointError, match="not finished; run the command that began it again"):
        FolderIndex.open(folder, ranker)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dim": 3}', '{"format_version": 1, "dim": 3}'])
def test_damaged_meta(folder, ranker, text):
    (folder / META).write_text(text)
    with pytest.raises(CheckpointError, match="meta.json: (damaged|not the description of an index)"):
        FolderIndex.open(folder, ranker)


def test_a_newer_version(folder, ranker, edit_json):
    edit_json(folder / META, format_version=3)
    with pytest.raises(CheckpointError, match="format version 3, but this version of polyencoder reads 1 and 2"):
        FolderIndex.open(folder, ranker)


def test_an_index_of_the_first_version(folder, ranker, edit_json, candidates, assert_finds):
    """It was changed in its place: files of any length, more of them than rows after a kill, one FAISS index."""
    faiss = pytest.importorskip("faiss")
    index = FolderIndex.open(folder, ranker)
    build_faiss(folder, index.vectors, kind="flat")
    (folder / "vectors-000000000008.npy").write_bytes((folder / "vectors-000000000006.npy").read_bytes())
    edit_json(folder / META, format_version=1, **dict.fromkeys(("generation", "catalogue", "vectors", "faiss"), ...))
    index = FolderIndex.open(folder, ranker)
    hits = index.search(ranker.encode_contexts([["hi"]]), top_k=2)
    assert {hit.found for hit in hits[0]} == {"certified"}  # by FAISS
    assert faiss.read_index(str(folder / "faiss-flat.index")).ntotal == 8
    index.add([new := Candidate("new", "new")])
    index.remove(["0", "twin 0"])
    assert index.state.faiss.meta.rows == 8
    index.compact()
    assert_finds(
        FolderIndex.open(folder, ranker), ranker, [*(c for c in candidates if c.text != candidates[0].text), new]
    )
    assert [path for path in folder.iterdir() if path.name in ("catalogue.sqlite", "faiss.json")] == []


@pytest.mark.parametrize(
    "names", [{"catalogue": "../x"}, {"vectors": ["/etc/passwd"]}, {"faiss": "a/b"}, {"vectors": 5}]
)
def test_meta_that_names_what_is_elsewhere(folder, ranker, edit_json, names):
    edit_json(folder / META, **names)
    with pytest.raises(CheckpointError, match="meta.json: damaged"):
        FolderIndex.open(folder, ranker)


def test_meta_with_values_of_another_type(folder, ranker, edit_json):
    edit_json(folder / META, dtype="float8")
    with pytest.raises(CheckpointError, match="damaged.*float8"):
        FolderIndex.open(folder, ranker)


def test_neither_vectors_nor_texts_are_read(folder, ranker):
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
    start = time.process_time()  # of this process alone, however busy the machine is
    index = FolderIndex.open(folder, fingerprints)
    assert time.process_time() - start < 0.5
    assert len(index.vectors) == rows
