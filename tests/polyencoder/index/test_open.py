"""An index by its address: which engine opens it, what is made where, and what cannot be made there."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.folder.verify import describe_folder
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import describe_index, make_index, open_index

RECORDS = [Candidate("a", "i have two dogs ."), Candidate("b", "i like to ski ."), "guten tag !"]
SERVER = "postgres://me:secret@nowhere.invalid/db#replies"


def test_what_was_made_is_opened_again(ranker, tmp_path):
    built = make_index(RECORDS, tmp_path / "index", ranker, model_name="models/mine")
    assert isinstance(built, FolderIndex)
    reopened = open_index(tmp_path / "index", ranker)
    assert isinstance(reopened, FolderIndex)
    assert len(reopened) == len(built) == 3
    query = ranker.encode_contexts(["do you ski ?"])
    assert [hit.id for hit in reopened.search(query)[0]] == [hit.id for hit in built.search(query)[0]]
    assert describe_index(tmp_path / "index") == describe_folder(tmp_path / "index")


def test_fingerprints_are_enough_for_searches_by_vectors_and_none_for_any_model(ranker, make_ranker, tmp_path):
    make_index(RECORDS, tmp_path / "index", ranker)
    for who in (Fingerprints.of(ranker), None):
        index = open_index(tmp_path / "index", who)
        assert len(index.search(ranker.encode_contexts(["hello"]), top_k=2)[0]) == 2
    with pytest.raises(CheckpointError, match="made by another model"):
        open_index(tmp_path / "index", make_ranker("poly", seed=1))


def test_an_open_index_is_searched_by_the_model_that_made_it(ranker, make_ranker, tmp_path, monkeypatch):
    built = make_index(RECORDS, tmp_path / "index", ranker)
    other, same = make_ranker("poly", seed=1), make_ranker("poly")
    for index in (built, open_index(tmp_path / "index"), open_index(tmp_path / "index", ranker)):
        with pytest.raises(CheckpointError, match="made by another model .*; this one has another weights"):
            other.search("hello", index)
        assert len(same.search("hello", index)) == 3
        monkeypatch.setattr(Fingerprints, "of", None)  # of a model that is known, or searched it before
        assert len(same.search("hello", index)) == 3
        monkeypatch.undo()
    monkeypatch.setattr(Fingerprints, "of", None)
    assert len(ranker.search("hello", built)) == 3


def test_a_temporary_index_goes_with_the_last_reference(ranker):
    index = make_index(RECORDS, None, ranker)
    folder = Path(index.folder)
    assert folder.is_dir()
    assert len(index) == 3
    del index
    gc.collect()
    assert not folder.exists()


def test_an_index_whose_faiss_index_fails_is_closed(ranker, tmp_path, monkeypatch):
    closed = []
    close = FolderIndex.close

    def fail(*_, **__):
        raise InputError("too few candidates")

    monkeypatch.setattr(FolderIndex, "close", lambda index: (closed.append(index), close(index)))
    monkeypatch.setattr(FolderIndex, "build_faiss", fail)
    with pytest.raises(InputError, match="too few"):
        make_index(RECORDS, tmp_path / "index", ranker, faiss="ivf-flat")
    assert len(closed) == 1


def test_a_faiss_index_is_built_and_measured_with_the_contexts(ranker, tmp_path):
    pytest.importorskip("faiss")
    texts = [f"i like number {n} ." for n in range(40)]
    index = make_index(
        texts, tmp_path / "index", ranker, faiss="hnsw,m=4", recall=0.5, contexts=["hello", "do you ski ?"]
    )
    lines = "\n".join(describe_index(tmp_path / "index"))
    assert index.state.faiss is not None
    assert "FAISS hnsw" in lines
    assert "recall@" in lines


@pytest.mark.parametrize("where", ["ftp://host/x", "http://localhost/index", "mysql:x"])
def test_an_address_of_no_engine(ranker, where):
    for call in (lambda: open_index(where, ranker), lambda: make_index(RECORDS, where, ranker)):
        with pytest.raises(ConfigError, match="looks like an address, and .* milvus"):
            call()


@pytest.mark.parametrize(
    ("where", "settings", "problem"),
    [
        ("folder", {"milvus": "hnsw"}, "milvus is 'hnsw', the kind of an index in milvus, but the index is elsewhere"),
        (SERVER, {"workers": 2}, "postgres://me@nowhere.invalid/db#replies: workers is only for"),
        ("folder", {"recall": 0.9}, "recall is for a FAISS index: give its kind"),
        ("folder", {"recall": 1.5, "faiss": "hnsw"}, "recall is 1.5; it must be above 0 and at most 1"),
        ("folder", {"contexts": ["hello"]}, "contexts are for measuring recall: give a recall"),
        ("folder", {"faiss": "tree"}, "the kind of FAISS index is 'tree'"),
        ("folder", {"faiss": "flat"}, "the kind of FAISS index is 'flat'; .* without FAISS"),
    ],
)
def test_settings_that_contradict_the_place_make_nothing(ranker, tmp_path, monkeypatch, where, settings, problem):
    """They neither wait for a server nor show its password."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=problem) as error:
        make_index(RECORDS, where, ranker, **settings)
    assert "secret" not in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("where", ["folder", "milvus:./x.db", SERVER])
def test_without_candidates_nothing_is_made_and_no_server_is_asked(ranker, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not made, as there are no candidates: the input is empty") as error:
        make_index([], where, ranker)
    assert "secret" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_without_a_model_recall_cannot_be_measured(ranker, tmp_path):
    with pytest.raises(ConfigError, match="recall is measured with contexts, which only a model encodes"):
        make_index(RECORDS, tmp_path / "index", Fingerprints.of(ranker), faiss="ivf-flat", recall=0.9)
    with pytest.raises(InputError, match="has no vector, and there is no model to encode its text"):
        make_index(RECORDS, tmp_path / "index", Fingerprints.of(ranker))
    assert os.listdir(tmp_path) == []


def test_a_folder_may_have_the_name_of_an_engine(make_ranker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranker = make_ranker("bi")
    for name in ("postgres", "postgresql", "milvus"):
        make_index(RECORDS, name, ranker).close()
        with open_index(name, ranker) as index:
            assert isinstance(index, FolderIndex)


@pytest.mark.parametrize("engine", ["folder", pytest.param("postgres", marks=pytest.mark.slow)])
def test_products_beyond_float32_certify_nothing(make_where, engine):
    """Sums of infinities of both signs are nan, which no list has in its order."""
    generator = np.random.default_rng(0)
    sizes = np.float32(10) ** generator.integers(-35, 35, (400, 1)).astype(np.float32)
    vectors = generator.standard_normal((400, 3)).astype(np.float32) * sizes
    contexts = generator.standard_normal((8, 3)).astype(np.float32) * np.float32(1e19)
    candidates = [Candidate(str(i), f"text {i}", vector=vector) for i, vector in enumerate(vectors)]
    options = {"faiss": "ivf-flat"} if engine == "folder" else {}
    with make_index(candidates, make_where(engine), Fingerprints("theirs"), **options) as index:
        hits = index.search(contexts, top_k=3, exactness="certified")
    best = np.argsort(-(contexts.astype(np.float64) @ vectors.T.astype(np.float64)), axis=1)[:, :3]
    assert [[int(hit.id) for hit in context_hits] for context_hits in hits] == best.tolist()
