"""Our layers of an MPNet: the modules and weights of transformers' own, and its outputs however they are computed.

test_families.py compares outputs and gradients, packed and padded, with transformers'.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from polyencoder.modeling import attention
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.relative import make_packable
from polyencoder.text.tokens import pad

SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.MPNetModel(transformers.MPNetConfig(**SIZES, **NO_DROPOUT, initializer_range=0.3)).eval()


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(1)
    return pad([torch.randint(5, 64, (n,), generator=generator).tolist() for n in (9, 1, 30)], pad_id=1)


def test_weights_keep_their_names_and_the_given_model_its_modules(model):
    names = [name for name, _ in model.named_parameters() if "pooler" not in name]
    backbone = Backbone(model)
    assert [name for name, _ in backbone.model.named_parameters()] == names
    assert backbone.get_layers() is backbone.model.encoder.layer
    assert type(model) is transformers.MPNetModel
    assert model.config._attn_implementation != attention.NAME
    assert model.pooler is not None


def test_other_families_are_unchanged():
    bert = transformers.BertModel(transformers.BertConfig(**SIZES))
    assert make_packable(bert) is bert


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_with_torchs_attention_as_in_a_graph(monkeypatch, model, tokens, dtype):
    """The way of an exported or compiled model, and of a GPU."""
    expected = model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state[tokens.mask]
    backbone = Backbone(model).eval()
    if dtype != torch.float32:
        backbone.cast_weights(dtype)
    for module in ("backbone", "relative"):
        monkeypatch.setattr(f"polyencoder.modeling.{module}.is_traced", lambda: True)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.1}
    torch.testing.assert_close(backbone(tokens)[tokens.mask], expected, **close)


def test_bfloat16_trains_the_bias_like_float32(model, tokens):
    gradients = []
    for enabled in (False, True):
        backbone = Backbone(model).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outputs = backbone(tokens)
            weight = backbone.model.encoder.relative_attention_bias.weight
            loss = (outputs.float()[tokens.mask] * torch.linspace(-1, 2, 16)).sum(1).square().mean()
            gradients += torch.autograd.grad(loss, weight)  # within autocast, as when chunks are recomputed
    assert torch.nn.functional.cosine_similarity(*(g.flatten() for g in gradients), dim=0) > 0.999
