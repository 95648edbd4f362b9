"""What else can run the model: ONNX graphs, weights in bfloat16."""

from __future__ import annotations

import asyncio

import pytest
import torch

from polyencoder import Ranker
from polyencoder.export.onnx import export_onnx
from polyencoder.serving import rerank
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES

pytestmark = pytest.mark.slow

QUERIES = ["do you have any pets ?", "hello", "what do you do for a living ? i ski ."]
DOCUMENTS = [one.text for one in REPLIES]


def all_at_once(service: Service) -> torch.Tensor:
    """The relevance [queries, documents], asked for at the same time."""

    async def ask():
        return await asyncio.gather(*(rerank.rank(service.engine, [query], DOCUMENTS) for query in QUERIES))

    rows = [dict(order) for order, *_ in asyncio.run(ask())]
    return torch.tensor([[row[place] for place in range(len(DOCUMENTS))] for row in rows])


@pytest.mark.parametrize("architecture", ["poly", "cross"])
@pytest.mark.parametrize(("backend", "dtype", "tolerance"), [("onnx", "float32", 1e-5), ("torch", "bfloat16", 1e-2)])
def test_results_are_those_of_a_ranker_of_the_same_backend(
    make_ranker, tmp_path, architecture, backend, dtype, tolerance
):
    make_ranker(architecture).save_pretrained(tmp_path / "model")
    if backend == "onnx":
        export_onnx(make_ranker(architecture), tmp_path / "model")
    ranker = Ranker.from_pretrained(tmp_path / "model", backend=backend, dtype=dtype, device="cpu")
    config = ServerConfig(model=str(tmp_path / "model"), backend=backend, model_dtype=dtype, device="cpu")
    service = Service.load(config)
    try:
        expected = torch.cat([torch.as_tensor(ranker.score([query], DOCUMENTS)) for query in QUERIES]).sigmoid()
        torch.testing.assert_close(all_at_once(service), expected, atol=tolerance, rtol=0)
    finally:
        service.close()
