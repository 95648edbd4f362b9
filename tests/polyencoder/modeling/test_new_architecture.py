"""How to add an architecture (docs/architecture.md): one file and a line in `families`, nothing else."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap

import pytest
import torch
from starlette.testclient import TestClient

from polyencoder.config import RankerConfig
from polyencoder.data.example import Example
from polyencoder.errors import ConfigError
from polyencoder.evaluation import evaluate
from polyencoder.export.card import write_model_card
from polyencoder.modeling.build import build_model
from polyencoder.modeling.families import FAMILIES, Family
from polyencoder.ranker import Ranker
from polyencoder.serving.app import create_app
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.service import Service
from polyencoder.settings.train import TrainSettings
from polyencoder.training.run import train_ranker

PAIRS = [
    ("hello , how are you today ?", "i am fine , thank you ."),
    ("do you have any pets ?", "i have two dogs ."),
    ("what do you do for a living ?", "i am a teacher ."),
    ("i like to ski in the mountains .", "my brother likes to ski too !"),
]

FILE = """
    import torch
    from torch import Tensor, nn

    from polyencoder.modeling.base import RankerModel
    from polyencoder.modeling.pooling import reduce
    from polyencoder.scoring import ContextEncoding


    class GatedEncoder(RankerModel):
        title = "gated encoder"

        def __init__(self, config, backbone):
            super().__init__(config)
            self.tower, self.gate = backbone, nn.Parameter(torch.ones(backbone.dim))
            self.register_buffer("batches", torch.zeros((), dtype=torch.long))

        @property
        def dim(self) -> int:
            return self.tower.dim

        def encode_context(self, tokens) -> ContextEncoding:
            return ContextEncoding((self._mean(tokens) * self.gate).unsqueeze(1))

        def encode_candidates(self, tokens) -> Tensor:
            return self._mean(tokens)

        def pooled(self, tokens) -> Tensor:
            return self._mean(tokens)

        def candidate_modules(self) -> list[nn.Module]:
            return [self.tower]

        def after_batch(self) -> None:
            self.batches += 1

        def _mean(self, tokens) -> Tensor:
            return reduce(self.tower(tokens), tokens.mask, reduction="mean")
"""


@pytest.fixture
def gated(tmp_path, monkeypatch):
    """The name of an architecture of a scratch package."""
    (tmp_path / "scratch_gated.py").write_text(textwrap.dedent(FILE))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("scratch_gated")
    monkeypatch.setitem(FAMILIES, "gated", Family(module.GatedEncoder))  # the line in `families.py`
    yield "gated"
    sys.modules.pop("scratch_gated")


@pytest.mark.slow
def test_it_is_trained_saved_loaded_indexed_evaluated_and_served(gated, backbone_folder, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"context": [c], "response": r}) + "\n" for c, r in PAIRS * 8))
    settings = TrainSettings(
        train=str(data),
        valid=str(data),
        out=str(tmp_path / "out"),
        backbone=str(backbone_folder("bert")),
        architecture=gated,
        batch_size=2,
        num_negatives=1,
        max_updates=4,
        device="cpu",
    )
    train_ranker(settings)
    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert type(ranker.model).__name__ == "GatedEncoder"
    assert "gated encoder" in (tmp_path / "out" / "README.md").read_text()
    ranker.save_pretrained(tmp_path / "again")
    again = Ranker.from_pretrained(tmp_path / "again", device="cpu")
    responses = [response for _, response in PAIRS]
    expected = torch.as_tensor(ranker.score([[PAIRS[0][0]]], responses))
    assert torch.equal(torch.as_tensor(again.score([[PAIRS[0][0]]], responses)), expected)

    tally = evaluate(again, [Example((context,), response, tuple(responses)) for context, response in PAIRS])
    assert 0 <= tally.report()["hits@1"] <= 1
    index = again.index(responses, tmp_path / "index")
    hits = again.search([PAIRS[0][0]], index, top_k=4)
    assert [hit.text for hit in hits] == [responses[i] for i in expected[0].argsort(descending=True)]
    assert again.encode(responses).shape == (4, 16)
    config = ServerConfig(model="gated", index=str(tmp_path / "index"), port=0)
    app = create_app(Service.from_config(config, Forward(again), index=index))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/rerank", json={"query": PAIRS[0][0], "documents": responses})
        assert [result["index"] for result in answer.json()["results"]] == expected[0].argsort(descending=True).tolist()


def test_it_is_described_and_an_unknown_name_is_an_error(gated, backbone_folder, tmp_path):
    Ranker.from_backbone(backbone_folder("bert"), gated, device="cpu").save_pretrained(tmp_path / "gated")
    assert "gated encoder" in write_model_card(Ranker.from_pretrained(tmp_path / "gated", device="cpu"), name="x")
    with pytest.raises(
        ConfigError, match="architecture is 'none'; it must be one of bi, poly, cross, late, convert, gated"
    ):
        build_model(RankerConfig(architecture="none", backbone={"model_type": "bert"}))
