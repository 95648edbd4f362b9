"""Embeddings, asked for by the clients of OpenAI, which asks for base64, Cohere and Hugging Face."""

from __future__ import annotations

import base64
import importlib

import cohere
import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient

from polyencoder.serving import embeddings as module
from tests.polyencoder.serving.conftest import check_refused

TEXTS = ["do you have any pets ?", "hello", "i like to ski in the mountains ."]


@pytest.fixture(scope="module")
def openai():
    """Imported by the tests that need it: it takes seconds, and every process collects this file."""
    return importlib.import_module("openai")


@pytest.mark.slow
def test_openais_client_gets_the_vectors_as_base64_and_as_numbers(serve, openai):
    client = serve("bi", records=None)
    ranker = client.service.engine.ranker
    theirs = openai.OpenAI(api_key="none", base_url=str(client.base_url.join("/v1")), max_retries=0)
    expected = torch.nn.functional.normalize(torch.as_tensor(ranker.encode_candidates(TEXTS)), dim=1).flatten().tolist()
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = theirs.embeddings.create(model="any", input=TEXTS, **options)
        if options.get("encoding_format") != "base64":  # which the client leaves as it is when asked for it
            numbers = [number for row in answer.data for number in row.embedding]
            assert numbers == pytest.approx(expected, abs=1e-5)
        assert [row.index for row in answer.data] == [0, 1, 2]
        assert answer.usage.total_tokens > 0


def test_a_query_is_read_as_a_context_and_its_product_with_a_document_is_their_score(serve):
    client = serve("bi", records=None)

    def vectors(kind):
        body = {"input": TEXTS, "input_type": kind, "normalize": False}
        answer = client.post("/v1/embeddings", json=body).json()
        return [row["embedding"] for row in answer["data"]]

    queries, documents = vectors("query"), vectors("document")
    assert vectors("search_query") == queries
    score = torch.as_tensor(client.service.engine.ranker.score(TEXTS, TEXTS))
    for i, query in enumerate(queries):
        for j, document in enumerate(documents):
            product = sum(a * b for a, b in zip(query, document, strict=True))
            assert product == pytest.approx(float(score[i, j]), rel=1e-4, abs=1e-4)


def test_openais_client_lists_the_model_and_is_told_where_chats_are(shared, openai):
    client = openai.OpenAI(api_key="none", base_url=str(shared.base_url.join("/v1")), max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="the model is tiny"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="no /v1/chat/completions; .* POST /v1/chat"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("route", "body", "param", "says"),
    [
        ("/v1/embeddings", {"input": [[1, 2]]}, "input", "tokens of another model's vocabulary: send texts"),
        ("/v1/embeddings", {"input": [1, 2]}, "input", "tokens of another model's vocabulary: send texts"),
        ("/v1/embeddings", {"input": [["a"]]}, "input.0", "valid string"),
        ("/v1/embeddings", {"input": []}, "input", "is empty"),
        ("/v1/embeddings", {"input": ["a", " "], "input_type": "query"}, "input.1", "is empty"),
        ("/v1/embeddings", {"input": "a", "dimensions": 3}, "dimensions", "the model's vectors have 16"),
        ("/v1/embeddings", {"input": "a", "input_type": "picture"}, "input_type", "'query'"),
        ("/v2/embed", {"texts": []}, "texts", "is empty"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 3}, "output_dimension", "the model's vectors have 16"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types.0", "'float'"),
        ("/v2/embed", {"texts": ["a"], "images": ["data:"]}, "images", "not a field"),
        ("/v2/embed", {"input_type": "search_query"}, "texts", "required"),
        ("/embed", {"inputs": []}, "inputs", "is empty"),
        ("/embed", {"inputs": ["a", " "]}, "inputs.1", "is empty"),
        ("/embed", {"inputs": [1]}, "inputs.0", "valid string"),
        ("/embed", {"inputs": "a", "input": "a"}, "input", "not a field"),
        ("/embed", {}, "inputs", "required"),
    ],
)
def test_what_is_wrong_is_said(shared, route, body, param, says):
    check_refused(shared.post(route, json=body), param, says)


@pytest.mark.parametrize("architecture", ["poly", "cross"])
def test_a_model_without_one_vector_a_text_says_what_to_use(serve, architecture):
    answer = serve(architecture, records=None).post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 422
    assert "/v1/rerank" in answer.json()["message"]


@pytest.mark.slow
def test_coheres_client_gets_the_vectors(serve):
    client = serve("bi", records=None)
    theirs = cohere.ClientV2(api_key="none", base_url=str(client.base_url))
    ranker = client.service.engine.ranker
    expected = torch.nn.functional.normalize(torch.as_tensor(ranker.encode_candidates(TEXTS)), dim=1).numpy()
    kinds = ["float", "base64"]
    answer = theirs.embed(model="any", input_type="search_document", texts=TEXTS, embedding_types=kinds)
    np.testing.assert_allclose(answer.embeddings.float_, expected, atol=1e-5)
    written = [np.frombuffer(base64.b64decode(row), "<f4") for row in answer.embeddings.base64]
    np.testing.assert_allclose(written, expected, atol=1e-5)
    assert answer.texts == TEXTS
    assert answer.meta.billed_units.input_tokens > 0
    answer = theirs.embed(model="any", input_type="search_query", texts=TEXTS)
    encoded = client.post("/v1/embeddings", json={"input": TEXTS, "input_type": "query"}).json()["data"]
    np.testing.assert_allclose(answer.embeddings.float_, [row["embedding"] for row in encoded], atol=1e-6)


def test_hugging_faces_client_gets_the_vectors(serve, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # for a server on this machine
    client = serve("bi", records=None)
    theirs = InferenceClient(model=str(client.base_url.join("/embed")), token="none")
    ranker = client.service.engine.ranker
    expected = torch.as_tensor(ranker.encode_candidates(TEXTS))
    vectors = torch.as_tensor(theirs.feature_extraction(TEXTS, normalize=False))
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-4)
    vectors = torch.as_tensor(theirs.feature_extraction(TEXTS[0]))
    torch.testing.assert_close(vectors[0], torch.nn.functional.normalize(expected, dim=1)[0], rtol=1e-4, atol=1e-4)
    body = {"inputs": [TEXTS[0]], "prompt_name": "query", "normalize": False}
    query = torch.tensor(client.post("/embed", json=body).json())
    scores = torch.as_tensor(ranker.score([TEXTS[0]], TEXTS))
    torch.testing.assert_close(query @ expected.T, scores, rtol=1e-3, atol=1e-3)


def test_a_form_that_is_asked_for_often_is_written_once(shared, monkeypatch):
    written, written_as = [], module._format_vector
    monkeypatch.setattr(module, "_format_vector", lambda row, kind: (written.append(kind), written_as(row, kind))[1])
    answer = shared.post("/v2/embed", json={"texts": ["a"], "embedding_types": ["float", "base64", "float"] * 9})
    assert answer.json()["embeddings"].keys() == {"float", "base64"}
    assert sorted(written) == ["base64", "float"]
