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
    return [ranker.text.tokenize_context(one) for one in contexts]


@pytest.mark.parametrize("max_tokens", [1, 24, 10_000])
@pytest.mark.parametrize("architecture", ["bi", "poly", "late", "convert"])
def test_contexts_and_candidates_are_those_of_the_ranker(make_ranker, architecture, max_tokens, sentences):
    ranker = make_ranker(architecture)
    forward = Forward(ranker, max_tokens=max_tokens)
    expected = ranker.encode_contexts(CONTEXTS)
    for row, found in enumerate(forward(CONTEXT, ids_of(ranker, CONTEXTS))):
        assert found.batch_size == 1
        np.testing.assert_allclose(found.list_codes()[0], expected.list_codes()[row], rtol=1e-4, atol=1e-5)
    vectors = np.stack([one.vector for one in forward(CANDIDATE, ranker.text.tokenize_candidates(sentences))])
    np.testing.assert_allclose(vectors, ranker.encode_candidates(sentences), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 30, 10_000])
@pytest.mark.parametrize("architecture", ["cross", "late"])
def test_scores_of_pairs_in_any_order(make_ranker, architecture, max_tokens, sentences):
    """Of contexts that share candidates and of such that do not, mixed."""
    ranker = make_ranker(architecture)
    scores = ranker.score(CONTEXTS, sentences)
    pairs = [(3, 0), (0, 5), (1, 2), (0, 0), (1, 7), (2, 3), (0, 2), (1, 2)]
    contexts, candidates = ids_of(ranker, CONTEXTS), ranker.text.tokenize_candidates(sentences)
    found = Forward(ranker, max_tokens=max_tokens)(PAIR, [(contexts[c], candidates[k]) for c, k in pairs])
    expected = [float(scores[c, k]) for c, k in pairs]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


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
    Forward(ranker, max_tokens=24)(PAIR, [(ids, one) for ids in ids_of(ranker, CONTEXTS) for one in candidates])
    assert sum(rows for rows, _ in sizes) == len(CONTEXTS) + len(sentences)
    assert all(rows == 1 or rows * length <= 24 for rows, length in sizes)


def test_a_model_in_training_mode_is_so_afterwards_and_computes_without_dropout(make_ranker, make_backbone_config):
    ranker = make_ranker("bi", backbone=make_backbone_config(dropout=0.5))
    ranker.model.train()
    forward, ids = Forward(ranker, max_tokens=100), ids_of(ranker, CONTEXTS)
    first, second = (np.concatenate([one.vectors for one in forward(CONTEXT, ids)]) for _ in range(2))
    assert np.array_equal(first, second)
    assert ranker.model.training


def test_an_item_counts_its_tokens():
    assert [
        item.cost for item in (build_context_item([1, 2]), build_candidate_item([1] * 7), build_pair_item([1, 2], [3]))
    ] == [2, 7, 3]


TEXTS = [one.text for one in REPLIES]
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


def check_alike(found, expected) -> None:
    """Equal, numbers to 1e-4."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            check_alike(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_alike(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


@pytest.fixture(scope="module")
def folder(make_ranker, tmp_path_factory):
    """(architecture) -> a calibrated model's folder, with graphs; its index is beside it. Each is made once."""

    @functools.cache
    def make(architecture, **fields):
        place = tmp_path_factory.mktemp(architecture)
        ranker = make_ranker(architecture, **fields)
        if architecture == "late":
            torch.nn.init.constant_(ranker.model.term_weights, 1e-3)
        ranker.save_pretrained(place / "model")
        export_onnx(ranker, place / "model")
        calibration = Calibration(
            temperature=0.5, none=-3.0, fingerprint=compute_model_fingerprint(ranker.model, ranker.text)
        )
        calibration.save(place / "model")
        if ranker.model.has_vectors:
            ranker.index(REPLIES, place / "replies").close()
        return place / "model"

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
            expected, found = (client.post(path.strip(), json=body) for client in clients)
            check_alike(without_times(found.json()), without_times(expected.json()))
            assert found.status_code == expected.status_code
            assert architecture in ("poly", "cross") or found.status_code == 200
        for path in ("/health", "/ready", "/v1/models", "/openapi.json"):
            expected, found = (client.get(path) for client in clients)
            assert found.status_code == 200
            assert found.json() == expected.json() or path == "/v1/models"  # which has a time
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
        asked = {"query": "hello", "texts": TEXTS, "raw_scores": True}
        found = {one["index"]: one["score"] for one in httpx.post(f"{url}/rerank", json=asked, timeout=SECONDS).json()}
    scores = [found[place] for place in range(len(TEXTS))]
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
    model, place = str(folder("poly")), str(tmp_path / "by-faiss")
    many = [one._replace(id=f"{one.id} {n}", text=f"{one.text} {n} times") for one in REPLIES for n in range(12)]
    Ranker.from_pretrained(model, device="cpu").index(many, place, faiss="ivf-flat,nlist=2,nprobe=1")
    bodies = [
        {},
        {"filter": {"lang": "en"}},
        *({"exactness": exactness} for exactness in ("exact", "certified", "approximate")),
        {"effort": 2, "list_length": 3, "top_k": 2},
    ]
    answers = []
    for backend in ("torch", "onnx"):
        config = ServerConfig(model=model, index=place, backend=backend, threads=1, port=0)
        with running(Service.load(config)) as url:
            asked = [httpx.post(f"{url}/v1/search", json={"query": "hi", **body}, timeout=SECONDS) for body in bodies]
            answers.append([without_times(answer.json()) for answer in asked])
    check_alike(answers[1], answers[0])
    found = {hit["found"] for answer in answers[1] for hit in answer["results"]}
    assert found == {"exact", "certified", "approximate"}


def test_a_server_of_graphs_searches_in_every_way_and_changes_its_index(folder, tmp_path):
    model, answers = folder("bi"), []
    for backend in ("torch", "onnx"):
        place = tmp_path / backend
        Ranker.from_pretrained(model, backend=backend, device="cpu").index(REPLIES, place, words=True).close()
        config = ServerConfig(model=str(model), index=str(place), backend=backend, port=0)
        with running(Service.load(config)) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
            new = {"candidates": [{"text": "i ski a lot .", "id": "new"}, {"text": "no pets .", "id": "pets"}]}
            assert client.put("/v1/candidates", json=new).json() == {"candidates": 1 + len(REPLIES)}
            asked = [{}, {"hybrid": True}, {"words_only": True}, {"diversity": 0.5}, {"group_by": "lang"}]
            found = [client.post("/v1/search", json={"query": "do you ski ?"} | one) for one in asked]
            answers.append([without_times(one.json()) for one in found])
            assert [one.status_code for one in found] == [200] * len(asked)
            assert "new" in {hit["id"] for hit in found[0].json()["results"]}
    check_alike(answers[1], answers[0])


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_candidates_are_encoded_once(folder, backend, monkeypatch):
    forward, *_ = load(ServerConfig(model=str(folder("bi")), backend=backend, threads=1))
    encoder, asked = forward.ranker.encoder, []
    ids, read = encoder.text.tokenize_candidates([*TEXTS, TEXTS[0]]), encoder.read_candidates
    expected = encoder.encode_candidates(ids)
    monkeypatch.setattr(encoder, "read_candidates", lambda given, **how: asked.append(len(given)) or read(given, **how))
    for some in (ids[:2], ids, ids[::-1]):
        found = np.stack([one.vector for one in forward(CANDIDATE, some)])
        np.testing.assert_allclose(found, expected[[ids.index(one) for one in some]], atol=1e-5)
    assert asked == [2, len(TEXTS) - 2]


def test_threads_are_shared_by_the_workers(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(forward_module, "_count_torch_threads", lambda: None)
    monkeypatch.setattr(forward_module.os, "sched_getaffinity", lambda _: range(6), raising=False)
    usual = Ranker.from_pretrained
    monkeypatch.setattr(Ranker, "from_pretrained", lambda *a, threads, **k: asked.append(threads) or usual(*a, **k))
    model = str(folder("bi"))
    for workers, threads in ((1, None), (4, None), (4, 2)):
        load(ServerConfig(model=model, backend="onnx", workers=workers, threads=threads))
    assert asked == [6, 1, 2]
