from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import AutoModel

from polyencoder.modeling import attention
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import get_backbone_config
from polyencoder.modeling.loading import load_pretrained
from polyencoder.text.batches import group_lengths
from polyencoder.text.tokens import TokenBatch, pad
from tests.encoders import ENCODERS
from tests.parameters import mostly_long


@pytest.mark.parametrize("kind", ENCODERS)
class TestEncoders:
    @pytest.mark.slow
    def test_outputs_are_the_models_own(self, backbone_folder, batch_of, kind):
        backbone = load_pretrained(backbone_folder(kind)).eval()
        tokens = batch_of(backbone)
        theirs = AutoModel.from_pretrained(backbone_folder(kind), attn_implementation="eager").eval()
        expected = theirs(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        outputs = backbone(tokens)
        assert outputs.shape == (2, 5, backbone.dim) == (2, 5, 16)
        torch.testing.assert_close(outputs[tokens.mask], expected[tokens.mask], rtol=1e-4, atol=1e-5)

    def test_attention_is_fused_and_nothing_is_left_unused(self, backbone_folder, batch_of, kind):
        backbone = load_pretrained(backbone_folder(kind))
        assert backbone.model.config._attn_implementation == attention.NAME
        assert not any("pooler" in name for name in backbone.state_dict())
        assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}
        backbone(batch_of(backbone)).sum().backward()
        assert all(parameter.grad is not None for parameter in backbone.parameters())

    def test_resizing_keeps_the_embeddings(self, backbone_folder, batch_of, kind):
        backbone = load_pretrained(backbone_folder(kind)).eval()
        before, outputs = backbone.model.get_input_embeddings().weight.clone(), backbone(batch_of(backbone))
        backbone.resize(70)
        after = backbone.model.get_input_embeddings().weight
        assert after.shape == (70, 16)
        assert torch.equal(after[:64], before)
        assert torch.equal(backbone(batch_of(backbone)), outputs)
        assert get_backbone_config(backbone.model)["vocab_size"] == 70
        backbone.resize(10)  # never smaller
        assert backbone.model.get_input_embeddings().weight.shape == (70, 16)

    def test_layers_and_embeddings(self, backbone_folder, kind):
        backbone = load_pretrained(backbone_folder(kind))
        assert len(backbone.get_layers()) == 2
        embeddings = {id(p) for p in backbone.get_embeddings().parameters()}
        layers = {id(p) for p in backbone.get_layers().parameters()}
        assert id(backbone.model.get_input_embeddings().weight) in embeddings
        assert not embeddings & layers


@pytest.mark.parametrize(("kind", "cost"), [("bert", 0), ("bert", 10_000), *((kind, 3) for kind in ENCODERS)])
@pytest.mark.parametrize("packs", [True, False])
@mostly_long("lengths", [[9, 2, 1, 6, 3, 9, 4], [1, 1, 1, 1, 1, 1, 20], [5, 5, 5], [4]], quick=1)
def test_what_goes_through_together_changes_nothing(
    monkeypatch, backbone_folder, make_tokens, kind, lengths, cost, packs
):
    """One row of tokens or groups of like length: outputs, gradients, segments are those of each sequence alone."""
    monkeypatch.setattr(Backbone, "packs", packs)
    monkeypatch.setattr("polyencoder.modeling.packing.BLOCK", cost)
    monkeypatch.setattr("polyencoder.modeling.packing.FORWARD_BLOCK", cost)
    monkeypatch.setattr("polyencoder.modeling.backbone.ROW", 12)
    monkeypatch.setattr("polyencoder.modeling.backbone.group_lengths", partial(group_lengths, pass_cost=cost))
    backbone = load_pretrained(backbone_folder(kind)).eval()
    sequences = [[token % 60 + 4 for token in row] for row in make_tokens(lengths)]
    segments = [[i % 2 for i in range(length)] for length in lengths]
    tokens = pad(sequences, pad_id=backbone.model.config.pad_token_id, segments=segments)

    def sums_and_gradients(outputs):
        weights = torch.arange(1.0, 17.0)
        sums = torch.stack([(row @ weights).square().sum() for row in outputs])
        return sums, torch.autograd.grad(sums.log().sum(), list(backbone.parameters()), allow_unused=True)

    outputs = backbone(tokens)
    assert outputs.shape == (len(lengths), max(lengths), 16)
    with torch.no_grad():
        torch.testing.assert_close(backbone(tokens)[tokens.mask], outputs[tokens.mask], rtol=1e-4, atol=1e-5)
    together = sums_and_gradients([outputs[i, :length] for i, length in enumerate(lengths)])
    alone = sums_and_gradients(
        [backbone(pad([ids], pad_id=0, segments=[s]))[0] for ids, s in zip(sequences, segments, strict=True)]
    )
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


def test_padding_does_not_go_through_the_model(backbone_folder, padded):
    backbone = load_pretrained(backbone_folder("bert"))
    assert backbone.packs
    shapes = []
    backbone.model.embeddings.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    outputs = backbone(padded([[2] * 30, [2] * 3, [2] * 4, [2] * 29]))
    assert outputs.shape == (4, 30, 16)
    assert shapes == [(1, 30 + 30 + 4 + 4, 16)]


def test_without_gradients_rows_are_short_and_hold_whole_sequences(monkeypatch, backbone_folder, padded):
    monkeypatch.setattr("polyencoder.modeling.backbone.ROW", 42)
    backbone = load_pretrained(backbone_folder("bert"))
    assert backbone.packs
    shapes = []
    backbone.model.embeddings.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape[:2]))
    with torch.no_grad():
        backbone(padded([[2] * 30, [2] * 3, [2] * 9, [2] * 30]))
    assert shapes == [(1, 3 + 9 + 30), (1, 30)]


def test_segments_reach_the_models_that_have_them(backbone_folder):
    ids, mask = torch.tensor([[2, 9, 8, 3]]), torch.ones(1, 4, dtype=torch.bool)
    segments = torch.tensor([[0, 0, 1, 1]])
    for kind in ENCODERS:
        backbone = load_pretrained(backbone_folder(kind)).eval()
        same = torch.equal(backbone(TokenBatch(ids, mask, segments)), backbone(TokenBatch(ids, mask)))
        assert same == (kind != "bert")
