"""Token vectors in an index folder: what a late-interaction encoder would read, through every change of the index."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch

import polyencoder.index.vectors as vectors_module
from polyencoder.encoding.reading import CandidateReader
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index import verify
from polyencoder.index.entries import Candidate
from polyencoder.index.folder.build import build_index
from polyencoder.index.folder.change import Change
from polyencoder.index.folder.files import DATABASE
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.open import describe_index
from polyencoder.modeling import late
from polyencoder.scoring.tokens import TokenVectors, pack_candidates
from tests.commands import run_command

pytestmark = pytest.mark.slow

STEP = {"int8": 1 / 127, "float16": 2**-10}  # one step of rounding of the largest number


@pytest.fixture
def make_late(make_ranker, text):
    """(**fields) -> a tiny late-interaction encoder, all of whose terms count."""

    def make(**fields):
        ranker = make_ranker("late", turn_end=text.separator_ids[-1], reduction="mean", **fields)
        with torch.no_grad():
            ranker.model.term_weights.copy_(torch.tensor([0.9, 0.5, 0.3, 0.4, 0.2]))
            ranker.model.token_weight.normal_()
        return ranker

    return make


@pytest.fixture
def ranker(make_late):
    return make_late(token_dim=5)


@pytest.fixture
def make_index(tmp_path, ranker, candidates):
    """(store_tokens, name="index", **settings) -> an index of `candidates`, of files of three rows."""

    def make(store_tokens: str, *, name: str = "index", **settings) -> FolderIndex:
        build_index(tmp_path / name, candidates, ranker, store_tokens=store_tokens, shard_size=3, **settings)
        return FolderIndex.open(tmp_path / name, ranker)

    return make


def read_one_by_one(ranker, texts) -> dict[str, TokenVectors]:
    return {text: ranker.model.read_candidates(ranker.text.batch_candidates([text]))[0] for text in texts}


def assert_holds(index: FolderIndex, ranker, step: float) -> None:
    """Each text of the index has the vectors that the model reads of it, up to rounding."""
    texts = index.texts()
    stored = index.token_vectors([*texts, "not in it"], ranker.model.token_fingerprint)
    assert list(stored) == texts
    for text, read in read_one_by_one(ranker, texts).items():
        np.testing.assert_allclose(stored[text].vector, read.vector.detach(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(stored[text].tokens, read.tokens.detach(), rtol=0, atol=step)
        np.testing.assert_allclose(np.linalg.norm(stored[text].tokens, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("store_tokens", ["int8", "float16"])
def test_a_search_reads_no_candidate_and_scores_as_if_it_did(make_index, ranker, dialogues, store_tokens, monkeypatch):
    index = make_index(store_tokens)
    texts = index.texts()
    assert_holds(index, ranker, STEP[store_tokens])
    expected = dict(zip(texts, torch.as_tensor(ranker.score(dialogues, texts)).T, strict=True))
    monkeypatch.setattr(ranker.encoder, "reader", None)  # nothing is read
    results = ranker.search_many(dialogues, index, keep_turns=True, top_k=100)

    # |M(c, x) - M(c', x)| <= sum_t |p_t - p'_t| + max_t |c_t - c'_t|, and |M(x, c) - M(x, c')| <= max_t |c_t - c'_t|
    model, bounds = ranker.model, {}
    stored = index.token_vectors(texts, model.token_fingerprint)
    stored = {text: TokenVectors(*map(torch.from_numpy, arrays)) for text, arrays in stored.items()}
    for text, read in read_one_by_one(ranker, texts).items():
        true, rounded = (model._build_candidate_texts(*pack_candidates([vectors])) for vectors in (read, stored[text]))
        moved = (true.tokens - rounded.tokens).norm(dim=-1).max()
        weights = model.term_weights.detach()
        shift = weights[1] * ((true.weights - rounded.weights).abs().sum() + moved) + weights[2] * moved
        bounds[text] = late.DOT_SCALE * shift.item()
    assert max(bounds.values()) < (1.5 if store_tokens == "int8" else 0.2)  # of scores whose differences are above 10
    for i, hits in enumerate(results):
        assert {hit.text for hit in hits} == set(texts)
        for hit in hits:
            assert abs(hit.rerank_score - float(expected[hit.text][i])) <= bounds[hit.text] + 1e-4


def add_and_remove(index: FolderIndex, text: str, id_: str) -> None:
    with index.changing():
        index.add([text])
        index.remove([id_])


def test_changes_keep_them(make_index, ranker, tmp_path):
    index = make_index("int8")
    index.add([Candidate("new", "a new text of several words"), Candidate("short", "no")])
    index.remove(["1", "twin 1", "4"])
    index.update([Candidate("0", "another text"), Candidate("2", "no")])
    assert_holds(index, ranker, STEP["int8"])
    with pytest.raises(InputError, match="no candidate has the id 'nobody'"):
        add_and_remove(index, "this is not kept", "nobody")
    assert_holds(FolderIndex.open(tmp_path / "index", ranker), ranker, STEP["int8"])
    index.compact()
    index.add([Candidate("last", "the last one")])
    assert_holds(index, ranker, STEP["int8"])
    assert len(list((tmp_path / "index").glob("*.tokens.npy"))) == len(index.vectors.names)
    verify(tmp_path / "index")
    stored = index.token_vectors(index.texts(), ranker.model.token_fingerprint)
    before = {text: vectors.tokens for text, vectors in stored.items()}
    other = FolderIndex.open(tmp_path / "index", ranker)
    after = other.token_vectors(before, ranker.model.token_fingerprint)
    assert all(np.array_equal(before[text], vectors.tokens) for text, vectors in after.items())
    index.remove({hit.id for hit in index.search(ranker.encode_contexts(["hello"]), top_k=100)[0]})
    index.compact()
    assert "tokens: of 5 numbers, int8; 0 bytes per text" in describe_index(tmp_path / "index")
    index.add(["one again"])
    assert_holds(index, ranker, STEP["int8"])


@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_killed_build_resumes(make_index, ranker, tmp_path, call, monkeypatch):
    calls, save = [], vectors_module.write_array

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(vectors_module, "write_array", killed)
        with pytest.raises(KeyboardInterrupt):
            make_index("int8")
    assert not (tmp_path / "index" / DATABASE).exists()
    assert_holds(make_index("int8"), ranker, STEP["int8"])


def test_faiss_reranks_by_them(make_index, ranker, dialogues, monkeypatch):
    pytest.importorskip("faiss")
    index = make_index("int8")
    expected = ranker.search_many(dialogues, index)
    index.build_faiss("ivf-flat", nlist=1)
    monkeypatch.setattr(ranker.encoder, "reader", None)
    again = ranker.search_many(dialogues, index)
    assert [[hit.id for hit in hits] for hits in again] == [[hit.id for hit in hits] for hits in expected]


def test_tuning_keeps_no_token_vectors_of_contexts(make_index, dialogues, monkeypatch):
    """FAISS reads their vectors alone."""
    pytest.importorskip("faiss")
    index, tune_faiss = make_index("int8"), Mock(side_effect=InputError("enough"))
    index.build_faiss("ivf-flat", nlist=1)
    monkeypatch.setattr(Change, "tune_faiss", tune_faiss)
    with pytest.raises(InputError, match="enough"):
        index.tune(recall=0.9, contexts=dialogues)
    (contexts,) = tune_faiss.call_args.args
    assert [part.tokens for part in contexts] == [None]


def test_what_the_index_does_not_hold_is_read(make_index, make_late, ranker, candidates, dialogues, tmp_path):
    index = make_index("int8")
    ranker.encoder.reader = lambda *_, **how: pytest.fail("the index has all of it")
    ranker.search(dialogues[0], index)
    ranker.encoder.reader = CandidateReader()
    assert index.token_vectors(["not in it"], ranker.model.token_fingerprint) == {}
    build_index(tmp_path / "bare", candidates, ranker)
    bare = FolderIndex.open(tmp_path / "bare", ranker)
    assert bare.token_vectors(bare.texts(), ranker.model.token_fingerprint) == {}
    with torch.no_grad():
        ranker.model.token_map.weight.neg_()  # the vectors are what they were, the token vectors are not
    assert index.token_vectors(index.texts(), ranker.model.token_fingerprint) == {}
    with pytest.raises(CheckpointError, match="holds token vectors of another model than this late-interaction"):
        index.add(["a new text"])


def test_a_damaged_file_is_found(make_index, ranker, tmp_path):
    index = make_index("int8")
    (offsets, *_) = sorted((tmp_path / "index").glob("*.offsets.npy"))
    (tokens, *_) = sorted((tmp_path / "index").glob("*.tokens.npy"))
    whole = offsets.read_bytes()
    numbers = np.load(offsets)
    numbers[1] = 10**9
    np.save(offsets, numbers)
    with pytest.raises(CheckpointError, match="the offsets of an index's token vectors are damaged"):
        FolderIndex.open(tmp_path / "index", ranker).token_vectors(index.texts(), ranker.model.token_fingerprint)
    with pytest.raises(CheckpointError, match="its checksum has changed"):
        verify(tmp_path / "index")
    offsets.write_bytes(whole)
    verify(tmp_path / "index")
    tokens.unlink()
    with pytest.raises(CheckpointError, match=r"tokens.npy: missing"):
        FolderIndex.open(tmp_path / "index", ranker)


def test_what_cannot_store_them(ranker, make_ranker, candidates, tmp_path, make_index):
    where = tmp_path / "index"
    with pytest.raises(InputError, match="a poly-encoder compares no token vectors that an index could hold"):
        make_ranker("poly").index(candidates, where, store_tokens="int8")
    with pytest.raises(ConfigError, match="store_tokens is 'int4'; it must be one of int8, float16"):
        ranker.index(candidates, where, store_tokens="int4")
    with pytest.raises(ConfigError, match="store_tokens is only for index folders"):
        ranker.index(candidates, f"milvus:{tmp_path}/file.db", store_tokens="int8")
    vector = torch.as_tensor(ranker.encode_candidates(["hello"]))[0].numpy()
    with pytest.raises(ConfigError, match="these candidates bring vectors"):
        ranker.index([Candidate("a", "hello", vector=vector)], where, store_tokens="int8")
    assert not where.exists()
    make_index("int8")
    with pytest.raises(InputError, match="has an index with other token vectors"):
        build_index(where, candidates, ranker, shard_size=3)
    build_index(tmp_path / "bare", candidates, ranker)
    with pytest.raises(InputError, match="has an index without token vectors"):
        build_index(tmp_path / "bare", candidates, ranker, store_tokens="int8")


def test_commands(ranker, sentences, tmp_path):
    ranker.save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("\n".join(sentences))
    (tmp_path / "b.txt").write_text("a new text\n")
    model, where = ("--model", tmp_path / "model"), tmp_path / "index"
    run_command("index", *model, "--candidates", tmp_path / "a.txt", "--out", where, "--store-tokens", "int8")
    run_command("update", *model, "--index", where, "--add", tmp_path / "b.txt", "--compact")
    index = FolderIndex.open(where, ranker)
    assert_holds(index, ranker, STEP["int8"])
    tokens = sum(map(len, ranker.text.tokenize_candidates(index.texts())))
    (line,) = [line for line in describe_index(where) if line.startswith("tokens: ")]
    assert line.startswith("tokens: of 5 numbers, int8; ")
    assert int(line.split("; ")[1].split()[0]) >= tokens * 5 / 9 + 8
    question = ("--context", "a new text", "--keep-turns")
    assert "a new text" in run_command("search", *model, "--index", where, *question).stdout
