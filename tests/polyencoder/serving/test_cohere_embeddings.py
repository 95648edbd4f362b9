"""`/v2/embed`, asked by Cohere's own client."""

from __future__ import annotations

import base64

import cohere
import numpy as np
import torch

TEXTS = ["do you have any pets ?", "hello", "i like to ski in the mountains ."]


def test_coheres_client_gets_the_vectors(serve):
    client = serve("bi", records=None)
    theirs = cohere.ClientV2(api_key="none", base_url=str(client.base_url))
    ranker = client.service.engine.ranker
    wanted = torch.nn.functional.normalize(torch.as_tensor(ranker.encode_candidates(TEXTS)), dim=1).numpy()
    kinds = ["float", "base64"]
    answer = theirs.embed(model="any", input_type="search_document", texts=TEXTS, embedding_types=kinds)
    np.testing.assert_allclose(answer.embeddings.float_, wanted, atol=1e-5)
    written = [np.frombuffer(base64.b64decode(row), "<f4") for row in answer.embeddings.base64]
    np.testing.assert_allclose(written, wanted, atol=1e-5)
    assert answer.texts == TEXTS
    assert answer.meta.billed_units.input_tokens > 0
    answer = theirs.embed(model="any", input_type="search_query", texts=TEXTS)
    encoded = client.post("/v1/embeddings", json={"input": TEXTS, "input_type": "query"}).json()["data"]
    np.testing.assert_allclose(answer.embeddings.float_, [row["embedding"] for row in encoded], atol=1e-6)


def test_what_cannot_be_embedded(serve):
    client = serve("bi", records=None)
    for more, param in [
        ({"texts": []}, "texts"),
        ({"output_dimension": 3}, "output_dimension"),
        ({"embedding_types": ["int8"]}, "embedding_types.0"),
        ({"images": ["data:"]}, "images"),
    ]:
        answer = client.post("/v2/embed", json={"texts": ["a"], "input_type": "search_document", **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text
