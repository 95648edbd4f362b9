"""`/embed` and `/rerank` with `texts`, asked as Hugging Face's client and text-embeddings-inference's users do."""

from __future__ import annotations

import math

import pytest
import torch
from huggingface_hub import InferenceClient

QUERY = "do you have any pets ?"
TEXTS = ["i have two dogs and a cat .", "i am a teacher .", "hello", "i like to ski ."]


def test_hugging_faces_client_gets_the_vectors(serve, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # for a server on this machine
    client = serve("bi", records=None)
    theirs = InferenceClient(model=str(client.base_url.join("/embed")), token="none")
    ranker = client.service.engine.ranker
    wanted = torch.as_tensor(ranker.encode_candidates(TEXTS))
    found = torch.as_tensor(theirs.feature_extraction(TEXTS, normalize=False))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    found = torch.as_tensor(theirs.feature_extraction(TEXTS[0]))
    torch.testing.assert_close(found[0], torch.nn.functional.normalize(wanted, dim=1)[0], rtol=1e-4, atol=1e-4)
    asked = {"inputs": [QUERY], "prompt_name": "query", "normalize": False}
    query = torch.tensor(client.post("/embed", json=asked).json())
    scores = torch.as_tensor(ranker.score([QUERY], TEXTS))
    torch.testing.assert_close(query @ wanted.T, scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_texts_are_ranked(serve, architecture):
    client = serve(architecture, records=None)
    answer = client.post("/rerank", json={"query": QUERY, "texts": TEXTS, "return_text": True}).json()
    expected = client.service.engine.ranker.rank([QUERY], TEXTS)
    assert [row["index"] for row in answer] == [hit.index for hit in expected]
    assert [row["score"] for row in answer] == pytest.approx([1 / (1 + math.exp(-hit.score)) for hit in expected])
    assert [row["text"] for row in answer] == [hit.text for hit in expected]
    asked = {"query": QUERY, "texts": TEXTS, "raw_scores": True, "truncate": True, "truncation_direction": "Right"}
    answer = client.post("/rerank", json=asked).json()
    assert [row["score"] for row in answer] == pytest.approx([hit.score for hit in expected], abs=1e-4)
    assert {*answer[0]} == {"index", "score"}


def test_a_wrong_request_is_said_with_its_field(serve):
    client = serve("bi", records=None)
    for route, body, param in [
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": ["a", " "]}, "inputs.1"),
        ("/embed", {"inputs": [1]}, "inputs.0"),
        ("/embed", {"inputs": "a", "input": "a"}, "input"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
        ("/rerank", {"query": "a", "texts": ["a", " "]}, "texts.1"),
        ("/rerank", {"query": "a", "texts": ["a"], "documents": ["a"]}, "documents"),
        ("/rerank", {"query": "a", "documents": ["a", " "]}, "documents.1"),
        ("/rerank", {"query": "a"}, "documents"),
    ]:
        answer = client.post(route, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), (route, body, answer.text)
