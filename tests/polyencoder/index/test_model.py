"""The model of an open index, of every engine: what replaces the index must be of the same one."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index import Candidate
from polyencoder.index.meta import Fingerprints, Maker
from polyencoder.index.milvus.collection import MilvusCollection
from polyencoder.index.model import IndexModel
from polyencoder.index.open import is_postgres, make_index, open_index
from polyencoder.index.postgres.connection import Server
from polyencoder.search.scores import score

pytestmark = pytest.mark.slow

TEXTS = ["hello", "do you ski ?", "i have two dogs ."]


@pytest.fixture(params=["folder", "faiss", "milvus", "postgres"])
def engine(request) -> str:
    if request.param == "faiss":
        pytest.importorskip("faiss")
    return request.param


@pytest.fixture
def where(engine, make_where) -> str:
    return make_where(engine)


@pytest.fixture
def build(engine, where):
    """(ranker, nameless=False): an index of this model in place of what is there; `nameless`: without its tokenizer."""

    def build(ranker, *, nameless: bool = False) -> None:
        if is_postgres(where):
            with closing(Server(where)) as server, server.changing() as session:
                session.ask(f"DROP TABLE IF EXISTS {server.name}")
        elif engine == "milvus":
            with closing(MilvusCollection(where)) as collection:
                collection._client.drop_collection(collection.name)
        else:
            shutil.rmtree(where, ignore_errors=True)
        records = [Candidate(text, text) for text in TEXTS]
        if nameless:
            vectors = ranker.encode_candidates(TEXTS)
            records = [record._replace(vector=vector) for record, vector in zip(records, vectors, strict=True)]
        kind = {"faiss": "ivf-flat", "milvus": "flat"}.get(engine)
        settings = {engine: kind} if kind else {}
        make_index(records, where, without_tokenizer(ranker) if nameless else ranker, **settings).close()

    return build


def without_tokenizer(ranker) -> Fingerprints:
    """The fingerprints of an index whose encoder is known by its name alone."""
    return Fingerprints(Fingerprints.of(ranker).model)


def scores(index, contexts) -> dict[str, float]:
    return {hit.text: hit.score for hit in index.search(contexts, top_k=3)[0]}


def test_an_index_that_another_model_has_replaced(build, where, ranker, make_ranker):
    build(ranker)
    contexts, other = ranker.encode_contexts(["hello"]), make_ranker("poly", seed=1)
    opened = [open_index(where, who) for who in (ranker, Fingerprints.of(ranker), None)]
    for index in opened:
        assert len(scores(index, contexts)) == 3
    build(other)
    for index in opened:
        with pytest.raises(CheckpointError, match="made by another model"):
            index.search(contexts)
    with pytest.raises(CheckpointError, match="was replaced by an index .* than when it was opened .*: open it again"):
        opened[2].search(contexts)
    for index in opened[:3]:
        with pytest.raises(CheckpointError, match="made by another model"):
            index.remove(["hello"])
        index.close()
    with open_index(where, other) as index:
        assert len(index) == 3


def test_an_index_that_the_same_model_has_replaced_under_another_fingerprint(build, where, ranker, make_ranker):
    build(ranker, nameless=True)
    contexts = ranker.encode_contexts(["hello"])
    with open_index(where, ranker) as index:
        expected = scores(index, contexts)
        for nameless in (False, True):
            build(ranker, nameless=nameless)
            assert scores(index, contexts) == pytest.approx(expected, rel=1e-4, abs=1e-4)
            index.add([Candidate("new", "guten tag !")])
            assert index.fingerprints == (without_tokenizer(ranker) if nameless else Fingerprints.of(ranker))
            assert len(index) == 4
        build(make_ranker("poly", seed=1))
        with pytest.raises(CheckpointError, match="made by another model"):
            index.search(contexts)


def test_weights_are_read_for_new_fingerprints_alone(ranker, monkeypatch):
    maker, read = Maker.from_ranker(ranker, model_name=""), []
    original = Fingerprints.of
    monkeypatch.setattr(Fingerprints, "of", lambda *args, **kwargs: read.append(1) or original(*args, **kwargs))
    model = IndexModel(ranker)
    for _ in range(3):
        model.check(maker, where="index")
    assert len(read) == 1


@pytest.mark.parametrize("attention", ["basic", "sqrt"])
def test_without_a_model_the_attention_is_that_of_the_maker(build, where, make_ranker, attention):
    ranker = make_ranker("poly", poly_attention=attention)
    build(ranker)
    contexts = ranker.encode_contexts(["hello", "do you have dogs ?"])
    vectors = ranker.encode_candidates(TEXTS)
    expected = score(contexts, vectors, attention=attention)[0].tolist()
    for who in (None, Fingerprints.of(ranker), ranker):
        with open_index(where, who) as index:
            assert scores(index, contexts) == pytest.approx(dict(zip(TEXTS, expected, strict=True)), rel=1e-4)
    with open_index(where) as index:
        single = contexts.vectors[:, 0]
        assert scores(index, single) == pytest.approx(
            dict(zip(TEXTS, (vectors @ single[0]).tolist(), strict=True)), rel=1e-4, abs=1e-5
        )


def test_multihead_attention_without_a_model(tmp_path, make_ranker):
    ranker = make_ranker("poly", poly_attention="multihead", poly_attention_heads=2)
    make_index(TEXTS, tmp_path / "index", ranker).close()
    contexts, vectors = ranker.encode_contexts(["hello"]), ranker.encode_candidates(TEXTS)
    with open_index(tmp_path / "index", ranker) as index:
        expected = scores(index, contexts)
    with open_index(tmp_path / "index") as index:
        assert scores(index, contexts) == expected
        single = contexts.vectors[:, 0]
        assert scores(index, single) == pytest.approx(
            dict(zip(TEXTS, (vectors @ single[0]).tolist(), strict=True)), rel=1e-4, abs=1e-5
        )
        with pytest.raises(InputError, match="attention is 'multihead', but the contexts have no keys"):
            index.search(contexts.vectors)
