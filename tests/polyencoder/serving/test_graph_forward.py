"""A server without torch gives the answers of one with torch, and says at its start what it cannot do."""

from __future__ import annotations

import contextlib
import functools
import sys

import httpx
import numpy as np
import pytest
import torch

from polyencoder import ConfigError, Ranker
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.export.onnx import export_onnx
from polyencoder.index.faiss import lists
from polyencoder.serving import batch_forward, graph_forward
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import CANDIDATE
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, running

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
        calibration = Calibration(temperature=0.5, none=-3.0, fingerprint=model_fingerprint(ranker.model, ranker.text))
        calibration.save(place / "model")
        if ranker.model.has_vectors:
            ranker.index(REPLIES, place / "replies").close()
        return place / "model"

    return make


@pytest.mark.parametrize("architecture", ["bi", "poly", "late", "cross", "convert"])
def test_the_answers_of_torch(folder, architecture):
    model = folder(architecture)
    index = None if architecture == "cross" else str(model.with_name("replies"))
    with contextlib.ExitStack() as stack:
        clients = []
        for backend, module in (("torch", batch_forward), ("onnx", graph_forward)):
            config = ServerConfig(model=str(model), index=index, backend=backend, threads=1, port=0)
            forward, opened, _ = module.load(config)
            url = stack.enter_context(running(Service.of(config, forward, index=opened)))
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
    with running(Service.of(config, graph_forward.load(config)[0], index=None)) as url:
        answer = httpx.post(f"{url}/v1/embeddings", json=REQUESTS["/v1/embeddings"], timeout=SECONDS)
        assert not httpx.get(f"{url}/info", timeout=SECONDS).json()["embeddings"]
    assert answer.status_code == 422
    assert "the model is a poly-encoder, which has no single vector for a text" in answer.text


@pytest.mark.parametrize(
    ("backend", "module"), [("torch", batch_forward), ("onnx", batch_forward), ("onnx", graph_forward)]
)
def test_a_faiss_index_without_faiss_is_an_error_before_the_server_starts(
    folder, backend, module, tmp_path, monkeypatch
):
    pytest.importorskip("faiss")
    model, place = str(folder("bi")), str(tmp_path / "by-faiss")
    Ranker.from_pretrained(model, device="cpu").index(REPLIES, place, faiss="hnsw,m=8").close()
    config = ServerConfig(model=model, index=place, backend=backend, threads=1, port=0)
    monkeypatch.setitem(sys.modules, "faiss", None)
    forward, opened, _ = module.load(config)
    with pytest.raises(ConfigError, match=r"^the package `faiss` is not installed: pip install '.*\[faiss\]'$"):
        Service.of(config, forward, index=opened)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_searches_by_faiss(folder, architecture, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(lists, "_SCAN_ROWS", 0)  # else few that pass a filter would be scanned
    model, place = str(folder(architecture)), str(tmp_path / "by-faiss")
    many = [one._replace(id=f"{one.id} {n}", text=f"{one.text} {n} times") for one in REPLIES for n in range(12)]
    Ranker.from_pretrained(model, device="cpu").index(many, place, faiss="ivf-flat,nlist=2,nprobe=1")
    bodies = [
        {},
        {"filter": {"lang": "en"}},
        *({"exactness": exactness} for exactness in ("exact", "certified", "approximate")),
        {"effort": 2, "list_length": 3, "top_k": 2},
    ]
    answers = []
    for backend, module in (("torch", batch_forward), ("onnx", graph_forward)):
        config = ServerConfig(model=model, index=place, backend=backend, threads=1, port=0)
        forward, opened, _ = module.load(config)
        with running(Service.of(config, forward, index=opened)) as url:
            asked = [httpx.post(f"{url}/v1/search", json={"query": "hi", **body}, timeout=SECONDS) for body in bodies]
            answers.append([without_times(answer.json()) for answer in asked])
    check_alike(answers[1], answers[0])
    found = {hit["found"] for answer in answers[1] for hit in answer["results"]}
    assert found == {"exact", "certified", "approximate"}


def test_requests_that_need_torch(folder):
    model = folder("bi")
    config = ServerConfig(model=str(model), index=str(model.with_name("replies")), backend="onnx", port=0)
    forward, index, _ = graph_forward.load(config)
    with running(Service.of(config, forward, index=index)) as url:
        for name, value in {"hybrid": True, "diversity": 0.5, "group_by": "lang"}.items():
            answer = httpx.post(f"{url}/v1/search", json={"query": "hi", name: value}, timeout=SECONDS)
            assert answer.status_code == 422
            assert answer.json()["message"].startswith(f"{name} needs torch")
        answer = httpx.post(f"{url}/v1/search", json={"query": "hi", "effort": 3}, timeout=SECONDS)
        assert answer.status_code == 422
        assert answer.json()["message"].startswith("effort given, but it has no FAISS index")
        for body in ({"candidates": [{"text": "hello"}]}, {"candidates": [{"text": "hello", "id": "pets"}]}):
            answer = httpx.put(f"{url}/v1/candidates", json=body, timeout=SECONDS)
            assert answer.status_code == 422
            assert answer.json()["message"].startswith("was opened without its model")


def test_candidates_are_encoded_once(folder, monkeypatch):
    forward, *_ = graph_forward.load(ServerConfig(model=str(folder("bi")), backend="onnx", threads=1))
    ranker = forward.ranker
    ids, read, asked = ranker.text.candidate_ids([*TEXTS, TEXTS[0]]), ranker.read_candidate_ids, []
    expected = ranker.encode_candidate_ids(ids)
    monkeypatch.setattr(ranker, "read_candidate_ids", lambda given: asked.append(len(given)) or read(given))
    for some in (ids[:2], ids, ids[::-1]):
        found = np.stack([one.vector for one in forward(CANDIDATE, some)])
        np.testing.assert_allclose(found, expected[[ids.index(one) for one in some]], atol=1e-5)
    assert asked == [2, len(TEXTS) - 2]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"backend": "torch"}, "give onnx or onnx-int8"),
        ({"index": "milvus:http://there:19530#replies"}, "searches one index folder"),
        ({"index": "postgres://there/chat#replies"}, "searches one index folder"),
        ({"index": "one", "rerank": "cross"}, "rerank needs torch"),
        ({"index": "one", "rerank_k": 5}, "rerank_k needs torch"),
        ({"device": "cuda"}, "device needs torch"),
        ({"model_dtype": "bfloat16"}, "model_dtype needs torch"),
    ],
)
def test_settings_that_need_torch(settings, says):
    with pytest.raises(ConfigError, match=says) as raised:
        graph_forward.load(ServerConfig(**{"model": "model", "backend": "onnx", **settings}))
    assert raised.value.argument in settings


def test_threads_are_shared_by_the_workers(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(graph_forward.os, "sched_getaffinity", lambda _: range(6), raising=False)
    load = graph_forward.Ranker.from_pretrained
    monkeypatch.setattr(
        graph_forward.Ranker, "from_pretrained", lambda *a, threads, **k: asked.append(threads) or load(*a, **k)
    )
    model = str(folder("bi"))
    for workers, threads in ((1, None), (4, None), (4, 2)):
        graph_forward.load(ServerConfig(model=model, backend="onnx", workers=workers, threads=threads))
    assert asked == [6, 1, 2]
