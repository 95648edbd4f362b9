"""The last layer for first tokens: transformers' own layer is the reference."""

from __future__ import annotations

import pytest
import torch
import transformers

from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.last_layer import LastLayer
from polyencoder.modeling.packing import pack
from polyencoder.text import TokenBatch

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}


def encoder(kind: str, **fields) -> Backbone:
    config = transformers.AutoConfig.for_model(kind, **SIZES, **fields)
    return Backbone(transformers.AutoModel.from_config(config)).eval()


@pytest.mark.parametrize(
    ("kind", "fits"),
    [("bert", True), ("roberta", True), ("electra", True), ("distilbert", False), ("modernbert", False)],
)
def test_the_layers_that_it_can_replace(kind, fits):
    sizes = {"n_layers": 2, "dim": 16, "n_heads": 2, "hidden_dim": 32} if kind == "distilbert" else {}
    special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    model = encoder(kind, **sizes, **(special if kind == "modernbert" else {}))
    assert LastLayer.fits(model.get_layers()[-1]) is fits


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[5], [3, 7, 1, 7], [9, 2]])
def test_outputs_are_those_of_the_layer_that_it_replaces(lengths):
    """Padded, packed, and of first tokens alone, whatever the lengths."""
    backbone = encoder("bert")
    layer, ours = backbone.get_layers()[-1], LastLayer(backbone.get_layers()[-1])
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    hidden = torch.randn(len(lengths), width, 16)
    packing = pack(mask, training=False)
    row, seen = hidden.flatten(0, 1)[packing.indices].unsqueeze(0), mask.new_ones(1, 1, 1, len(packing.indices))
    expected = layer(row, seen, packing=packing)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(ours(row, seen, packing=packing), expected)
    first = packing.put_first(ours(row, seen, packing=packing, first_only=True), *mask.shape)
    torch.testing.assert_close(first, packing.put(expected, *mask.shape)[:, :1])


@torch.no_grad()
def test_an_encoder_with_it_saves_and_computes_the_same():
    """Its weights keep their names, so that checkpoints stay as they were."""
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model("bert", **SIZES)).eval()
    backbone = Backbone(model).eval()
    ids = torch.randint(5, 50, (3, 6))
    tokens = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    expected = model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(backbone(tokens, first_only=True), expected[:, :1])
    assert isinstance(backbone.get_layers()[-1], LastLayer)
    torch.testing.assert_close(backbone(tokens), expected)
    weights = {name.removeprefix("model."): tensor for name, tensor in backbone.state_dict().items()}
    assert weights.keys() == {name for name in model.state_dict() if not name.startswith("pooler.")}


def test_its_mode_is_that_of_its_parts():
    """The layer is built while the model is in evaluation mode for a moment, and must not stay in it."""
    layer = encoder("bert", hidden_dropout_prob=0.5).get_layers()[-1]
    ours = LastLayer(layer)
    assert not ours.training
    layer.train()
    assert ours.training
    ours.train(False)
    assert not layer.attention.training
