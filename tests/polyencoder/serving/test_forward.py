"""One batch of a server's items, and a server of ONNX graphs, whose answers are those of torch's."""

from __future__ import annotations

import contextlib
import functools
import sys

import httpx
import numpy as np
import pytest
import torch

import polyencoder.serving.forward as forward_module
from polyencoder import ConfigError, Ranker
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.export.onnx import export_onnx
from polyencoder.index.faiss import search as faiss_search
from polyencoder.modeling.base import RankerModel
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import (
    CANDIDATE,
    CONTEXT,
    PAIR,
    Forward,
    build_candidate_item,
    build_context_item,
    build_pair_item,
    load,
)
from polyencoder.serving.service import Service
from tests.parameters import mostly_long
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, running

pytestmark = pytest.mark.slow

CONTEXTS = [["hello"], ["do you ski ?", "no , i have two dogs ."], ["i am a teacher . i teach math ."], ["hi"]]


def ids_of(ranker, contexts) -> list[list[int]]:
    return [ranker.text.tokenize_context(context) for context in contexts]


@pytest.mark.parametrize("max_tokens", [1, 24, 10_000])
@pytest.mark.parametrize("architecture", ["bi", "poly", "late", "convert"])
def test_contexts_and_candidates_are_those_of_the_ranker(make_ranker, architecture, max_tokens, sentences):
    ranker = make_ranker(architecture)
    forward = Forward(ranker, max_tokens=max_tokens)
    expected = ranker.encode_contexts(CONTEXTS)
    for row, encoded in enumerate(forward(CONTEXT, ids_of(ranker, CONTEXTS))):
        assert encoded.batch_size == 1
        np.testing.assert_allclose(encoded.list_codes()[0], expected.list_codes()[row], rtol=1e-4, atol=1e-5)
    vectors = np.stack([item.vector for item in forward(CANDIDATE, ranker.text.tokenize_candidates(sentences))])
    np.testing.assert_allclose(vectors, ranker.encode_candidates(sentences), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 30, 10_000])
@pytest.mark.parametrize("architecture", ["cross", "late"])
def test_scores_of_pairs_in_any_order(make_ranker, architecture, max_tokens, sentences):
    """Pairs whose contexts share candidates, mixed with pairs whose contexts do not."""
    ranker = make_ranker(architecture)
    scores = ranker.score(CONTEXTS, sentences)
    pairs = [(3, 0), (0, 5), (1, 2), (0, 0), (1, 7), (2, 3), (0, 2), (1, 2)]
    contexts, candidates = ids_of(ranker, CONTEXTS), ranker.text.tokenize_candidates(sentences)
    actual = Forward(ranker, max_tokens=max_tokens)(PAIR, [(contexts[c], candidates[k]) for c, k in pairs])
    expected = [float(scores[c, k]) for c, k in pairs]
    assert actual == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("max_tokens", [24, 60])
def test_no_pass_has_more_tokens_than_the_budget(make_ranker, monkeypatch, max_tokens, sentences):
    """Padding included; a longer text goes through alone."""
    sizes = []
    ranker = make_ranker("bi")
    encode = type(ranker.model).encode_candidates

    def counted(self: RankerModel, tokens):
        sizes.append(tuple(tokens.ids.shape))
        return encode(self, tokens)

    monkeypatch.setattr(type(ranker.model), "encode_candidates", counted)
    texts = [*sentences, " ".join(sentences[:2]), "hi"]
    Forward(ranker, max_tokens=max_tokens)(CANDIDATE, ranker.text.tokenize_candidates(texts))
    assert sum(rows for rows, _ in sizes) == len(texts)
    assert all(rows == 1 or rows * length <= max_tokens for rows, length in sizes)
    assert len(sizes) < len(texts)  # short texts share a pass


def test_nor_have_the_pairs_of_a_late_encoder(make_ranker, sentences):
    sizes = []
    ranker = make_ranker("late")
    for tower in ranker.model.backbones:
        tower.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].ids.shape)))
    candidates = ranker.text.tokenize_candidates(sentences)
    pairs = [(ids, candidate) for ids in ids_of(ranker, CONTEXTS) for candidate in candidates]
    Forward(ranker, max_tokens=24)(PAIR, pairs)
    assert sum(rows for rows, _ in sizes) == len(CONTEXTS) + len(sentences)
    assert all(rows == 1 or rows * length <= 24 for rows, length in sizes)


def test_a_model_in_training_mode_is_so_afterwards_and_computes_without_dropout(make_ranker, make_backbone_config):
    ranker = make_ranker("bi", backbone=make_backbone_config(dropout=0.5))
    ranker.model.train()
    forward, ids = Forward(ranker, max_tokens=100), ids_of(ranker, CONTEXTS)
    first, second = (np.concatenate([encoded.vectors for encoded in forward(CONTEXT, ids)]) for _ in range(2))
    assert np.array_equal(first, second)
    assert ranker.model.training


def test_an_item_counts_its_tokens():
    assert [
        item.cost for item in (build_context_item([1, 2]), build_candidate_item([1] * 7), build_pair_item([1, 2], [3]))
    ] == [2, 7, 3]


TEXTS = [reply.text for reply in REPLIES]
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
REQUESTS = {
    "/v1/rerank": {"query": "do you ski ?", "documents": TEXTS, "top_n": 3},
    "/v1/rerank ": {"query": "do you ski ?", "documents": [TEXTS[0], TEXTS[1], TEXTS[0]]},
    "/v1/select": {"messages": [*CHAT, CHAT[0]], "options": ["weather", "timer"]},
    "/v1/search": {"query": "do you ski ?", "top_k": 3},
    "/v1/search ": {"query": TEXTS[0], "filter": {"lang": "en"}},
    "/v1/search  ": {"query": "hello", "min_probability": 0.1, "diversity": 0},
    "/v1/chat": {"messages": [*CHAT, CHAT[0]]},
    "/v1/embeddings": {"input": TEXTS, "input_type": "query"},
    "/v1/embeddings ": {"input": TEXTS, "normalize": False},
}


def without_times(answer):
    """An answer without what differs from one to the next."""
    return {name: value for name, value in answer.items() if name not in ("id", "milliseconds", "created")}


def check_alike(actual, expected) -> None:
    """Equal, numbers to 1e-4."""
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            check_alike(actual[name], value)
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            check_alike(*pair)
    else:
        assert actual == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


@pytest.fixture(scope="module")
def folder(make_ranker, tmp_path_factory):
    """(architecture) -> a calibrated model's folder, with graphs; its index is beside it. Each is made once."""

    @functools.cache
    def make(architecture, **fields):
        parent = tmp_path_factory.mktemp(architecture)
        ranker = make_ranker(architecture, **fields)
        if architecture == "late":
            torch.nn.init.constant_(ranker.model.term_weights, 1e-3)
        ranker.save_pretrained(parent / "model")
        export_onnx(ranker, parent / "model")
        calibration = Calibration(
            temperature=0.5, none=-3.0, fingerprint=compute_model_fingerprint(ranker.model, ranker.text)
        )
        calibration.save(parent / "model")
        if ranker.model.has_vectors:
            ranker.index(REPLIES, parent / "replies").close()
        return parent / "model"

    return make


@mostly_long("architecture", ["poly", "cross", "convert", "bi", "late"], quick=3)
def test_the_answers_of_torch(folder, architecture):
    model = folder(architecture)
    index = None if architecture == "cross" else str(model.with_name("replies"))
    with contextlib.ExitStack() as stack:
        clients = []
        for backend in ("torch", "onnx"):
            config = ServerConfig(model=str(model), index=index, backend=backend, threads=1, port=0)
            url = stack.enter_context(running(Service.load(config)))
            clients.append(stack.enter_context(httpx.Client(base_url=url, timeout=SECONDS)))
        for path, body in REQUESTS.items():
            expected, actual = (client.post(path.strip(), json=body) for client in clients)
            check_alike(without_times(actual.json()), without_times(expected.json()))
            assert actual.status_code == expected.status_code
            assert architecture in ("poly", "cross") or actual.status_code == 200
        for path in ("/health", "/ready", "/v1/models", "/openapi.json"):
            expected, actual = (client.get(path) for client in clients)
            assert actual.status_code == 200
            assert actual.json() == expected.json() or path == "/v1/models"  # which has a time
        info = [client.get("/info").json() for client in clients]
        assert info[1] == info[0] | {"backend": "onnx"}


def test_a_poly_encoder_of_one_code_has_no_embeddings(folder):
    config = ServerConfig(model=str(folder("poly", n_codes=1)), backend="onnx", threads=1, port=0)
    with running(Service.load(config)) as url:
        answer = httpx.post(f"{url}/v1/embeddings", json=REQUESTS["/v1/embeddings"], timeout=SECONDS)
        assert not httpx.get(f"{url}/info", timeout=SECONDS).json()["embeddings"]
    assert answer.status_code == 422
    assert "the model is a poly-encoder, which has no single vector for a text" in answer.text


@pytest.mark.parametrize("architecture", ["poly", "cross"])
def test_weights_in_bfloat16_have_the_results_of_such_a_ranker(make_ranker, tmp_path, architecture):
    make_ranker(architecture).save_pretrained(tmp_path / "model")
    (expected,) = Ranker.from_pretrained(tmp_path / "model", dtype="bfloat16", device="cpu").score(["hello"], TEXTS)
    (exact,) = make_ranker(architecture).score(["hello"], TEXTS)
    config = ServerConfig(model=str(tmp_path / "model"), model_dtype="bfloat16", device="cpu", port=0)
    with running(Service.load(config)) as url:
        body = {"query": "hello", "texts": TEXTS, "raw_scores": True}
        rows = httpx.post(f"{url}/rerank", json=body, timeout=SECONDS).json()
    scores = [row["score"] for row in sorted(rows, key=lambda row: row["index"])]
    assert len(scores) == len(TEXTS)
    assert scores == pytest.approx(list(map(float, expected)), rel=1e-2)
    assert scores != pytest.approx(list(map(float, exact)), rel=1e-5)


def test_a_faiss_index_without_faiss_is_an_error_before_the_server_starts(make_ranker, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    make_ranker("bi").save_pretrained(tmp_path / "model")
    make_ranker("bi").index(REPLIES, tmp_path / "by-faiss", faiss="hnsw,m=8").close()
    config = ServerConfig(model=str(tmp_path / "model"), index=str(tmp_path / "by-faiss"), port=0)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"^the package `faiss` is not installed: pip install '.*\[faiss\]'$"):
        Service.load(config)


def test_searches_by_faiss(folder, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(faiss_search, "_SCAN_ROWS", 0)  # else few that pass a filter would be scanned
    model, where = str(folder("poly")), str(tmp_path / "by-faiss")
    many = [
        reply._replace(id=f"{reply.id} {n}", text=f"{reply.text} {n} times") for reply in REPLIES for n in range(12)
    ]
    Ranker.from_pretrained(model, device="cpu").index(many, where, faiss="ivf-flat,nlist=2,nprobe=1")
    bodies = [
        {},
        {"filter": {"lang": "en"}},
        *({"exactness": exactness} for exactness in ("exact", "certified", "approximate")),
        {"effort": 2, "list_length": 3, "top_k": 2},
    ]
    answers = []
    for backend in ("torch", "onnx"):
        config = ServerConfig(model=model, index=where, backend=backend, threads=1, port=0)
        with running(Service.load(config)) as url:
            posts = [httpx.post(f"{url}/v1/search", json={"query": "hi", **body}, timeout=SECONDS) for body in bodies]
            answers.append([without_times(answer.json()) for answer in posts])
    check_alike(answers[1], answers[0])
    kinds = {hit["found"] for answer in answers[1] for hit in answer["results"]}
    assert kinds == {"exact", "certified", "approximate"}


def test_a_server_of_graphs_searches_in_every_way_and_changes_its_index(folder, tmp_path):
    model, answers = folder("bi"), []
    for backend in ("torch", "onnx"):
        where = tmp_path / backend
        Ranker.from_pretrained(model, backend=backend, device="cpu").index(REPLIES, where, words=True).close()
        config = ServerConfig(model=str(model), index=str(where), backend=backend, port=0)
        with running(Service.load(config)) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
            new = {"candidates": [{"text": "i ski a lot .", "id": "new"}, {"text": "no pets .", "id": "pets"}]}
            assert client.put("/v1/candidates", json=new).json() == {"candidates": 1 + len(REPLIES)}
            bodies = [{}, {"hybrid": True}, {"words_only": True}, {"diversity": 0.5}, {"group_by": "lang"}]
            responses = [client.post("/v1/search", json={"query": "do you ski ?"} | body) for body in bodies]
            answers.append([without_times(response.json()) for response in responses])
            assert [response.status_code for response in responses] == [200] * len(bodies)
            assert "new" in {hit["id"] for hit in responses[0].json()["results"]}
    check_alike(answers[1], answers[0])


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_candidates_are_encoded_once(folder, backend, monkeypatch):
    forward, *_ = load(ServerConfig(model=str(folder("bi")), backend=backend, threads=1))
    encoder, sizes = forward.ranker.encoder, []
    ids, read = encoder.text.tokenize_candidates([*TEXTS, TEXTS[0]]), encoder.read_candidates
    expected = encoder.encode_candidates(ids)
    monkeypatch.setattr(encoder, "read_candidates", lambda rows, **how: sizes.append(len(rows)) or read(rows, **how))
    for batch in (ids[:2], ids, ids[::-1]):
        vectors = np.stack([item.vector for item in forward(CANDIDATE, batch)])
        np.testing.assert_allclose(vectors, expected[[ids.index(row) for row in batch]], atol=1e-5)
    assert sizes == [2, len(TEXTS) - 2]


def test_threads_are_shared_by_the_workers(folder, monkeypatch):
    counts = []
    monkeypatch.setattr(forward_module, "_count_torch_threads", lambda: None)
    monkeypatch.setattr(forward_module.os, "sched_getaffinity", lambda _: range(6), raising=False)
    usual = Ranker.from_pretrained
    monkeypatch.setattr(Ranker, "from_pretrained", lambda *a, threads, **k: counts.append(threads) or usual(*a, **k))
    model = str(folder("bi"))
    for workers, threads in ((1, None), (4, None), (4, 2)):
        load(ServerConfig(model=model, backend="onnx", workers=workers, threads=threads))
    assert counts == [6, 1, 2]
