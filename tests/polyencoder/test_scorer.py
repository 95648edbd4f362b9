"""What putting a model into a ranker leaves as it was."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from polyencoder.modeling.backbone import Backbone
from polyencoder.ranker import Ranker


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
@pytest.mark.parametrize("training", [True, False])
def test_a_model_keeps_its_mode_and_scores_as_in_evaluation(make_ranker, architecture, training):
    made = make_ranker(architecture)
    frozen = next(iter(made.model.children()))
    model = made.model.train(training)
    frozen.eval()  # a part may be in another mode
    modes = [module.training for module in model.modules()]
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    ranker = Ranker(model, made.text)
    one, other = (ranker.score(["hello !"], ["i love dogs .", "my cat ."]) for _ in range(2))
    assert torch.equal(one, other)
    assert [module.training for module in model.modules()] == modes


def test_an_encoder_keeps_its_pooler(backbone_folder):
    model = AutoModel.from_pretrained(backbone_folder("bert"))
    backbone = Backbone(model)
    assert model.pooler is not None
    assert not any("pooler" in name for name in backbone.state_dict())
    assert backbone.model.embeddings.word_embeddings.weight is model.embeddings.word_embeddings.weight
