"""`/v1/embeddings`, asked by OpenAI's own client, which asks for base64."""

from __future__ import annotations

import importlib

import pytest
import torch

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
    wanted = torch.nn.functional.normalize(torch.as_tensor(ranker.encode_candidates(TEXTS)), dim=1).flatten().tolist()
    for given in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = theirs.embeddings.create(model="any", input=TEXTS, **given)
        if given.get("encoding_format") != "base64":  # which the client leaves as it is when asked for it
            found = [number for one in answer.data for number in one.embedding]
            assert found == pytest.approx(wanted, abs=1e-5)
        assert [one.index for one in answer.data] == [0, 1, 2]
        assert answer.usage.total_tokens > 0


def test_a_query_is_read_as_a_context_and_its_product_with_a_document_is_their_score(serve):
    client = serve("bi", records=None)

    def vectors(kind):
        asked = {"input": TEXTS, "input_type": kind, "normalize": False}
        answer = client.post("/v1/embeddings", json=asked).json()
        return [one["embedding"] for one in answer["data"]]

    queries, documents = vectors("query"), vectors("document")
    assert vectors("search_query") == queries
    score = torch.as_tensor(client.service.engine.ranker.score(TEXTS, TEXTS))
    for i, query in enumerate(queries):
        for j, document in enumerate(documents):
            product = sum(a * b for a, b in zip(query, document, strict=True))
            assert product == pytest.approx(float(score[i, j]), rel=1e-4, abs=1e-4)


def test_openais_client_lists_the_model_and_is_told_where_chats_are(shared, openai):
    client = openai.OpenAI(api_key="none", base_url=str(shared.base_url.join("/v1")), max_retries=0)
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="the model is tiny"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="no /v1/chat/completions; .* POST /v1/chat"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": [[1, 2]]}, "input: has tokens of another model's vocabulary: send texts"),
        ({"input": [1, 2]}, "input: has tokens of another model's vocabulary: send texts"),
        ({"input": [["a"]]}, "input.0: Input should be a valid string"),
        ({"input": []}, "input is empty"),
        ({"input": ["a", " "], "input_type": "query"}, "input.1 is empty"),
        ({"input": "a", "dimensions": 3}, "the model's vectors have 16"),
        ({"input": "a", "input_type": "picture"}, "input_type"),
    ],
)
def test_what_is_wrong_is_said(shared, body, says):
    answer = shared.post("/v1/embeddings", json=body)
    assert answer.status_code == 422
    assert says in answer.json()["message"]


@pytest.mark.parametrize("architecture", ["poly", "cross"])
def test_a_model_without_one_vector_a_text_says_what_to_use(serve, architecture):
    answer = serve(architecture, records=None).post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 422
    assert "/v1/rerank" in answer.json()["message"]
