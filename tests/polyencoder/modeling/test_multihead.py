"""Attention with several heads: torch's own `MultiheadAttention` with the same weights is the reference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder.errors import ConfigError
from polyencoder.modeling.multihead import CandidateAttention, CodesAttention, masked_softmax
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.exact import score

DIM = 12


def scrambled(module: nn.Module) -> nn.Module:
    """Weights and biases far from the identity that they begin with."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def reference(attention: nn.Module) -> nn.MultiheadAttention:
    """torch's module with these weights."""
    module = nn.MultiheadAttention(DIM, attention.heads, batch_first=True)
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        module.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        module.out_proj.load_state_dict(attention.output.state_dict())
    return module


@pytest.mark.parametrize("heads", [1, 3, 12])
def test_codes_attend_as_torchs_module_does(heads):
    ours = scrambled(CodesAttention(DIM, heads))
    codes, outputs = torch.randn(5, DIM), torch.randn(2, 7, DIM)
    mask = torch.arange(7) < torch.tensor([[7], [3]])
    expected, weights = reference(ours)(
        codes.expand(2, -1, -1), outputs, outputs, key_padding_mask=~mask, average_attn_weights=False
    )
    torch.testing.assert_close(ours(codes, outputs, mask), expected)
    torch.testing.assert_close(ours.compute_weights(codes, outputs, mask), weights)
    outputs[1, 3:] = 1e4  # padding
    torch.testing.assert_close(ours(codes, outputs, mask), expected)


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("separate", [False, True])
def test_a_candidates_score_is_its_product_with_what_it_attends_to(heads, separate):
    """The projections are folded into the context's vectors: candidates are only multiplied with these."""
    ours = scrambled(CandidateAttention(DIM, heads))
    codes, mask = torch.randn(2, 4, DIM), torch.tensor([[True] * 4, [True, True, False, False]])
    candidates = torch.randn(2, 3, DIM) if separate else torch.randn(3, DIM)
    each = candidates if separate else candidates.expand(2, -1, -1)
    attended, _ = reference(ours)(each, codes, codes, key_padding_mask=~mask)
    scores = score(ours(ContextEncoding(codes, mask)), candidates, attention="multihead")
    torch.testing.assert_close(scores, (attended * each).sum(-1), rtol=1e-4, atol=1e-4)


def test_a_new_module_with_one_head_is_plain_scaled_attention():
    codes, outputs = torch.randn(3, DIM), torch.randn(1, 5, DIM)
    vectors = CodesAttention(DIM, 1)(codes, outputs, torch.ones(1, 5, dtype=torch.bool))
    expected = torch.softmax(codes @ outputs[0].T / DIM**0.5, 1) @ outputs[0]
    torch.testing.assert_close(vectors[0], expected)


def test_a_softmax_of_nothing_is_zero_and_has_a_gradient():
    logits = torch.randn(2, 3, requires_grad=True)
    weights = masked_softmax(logits, torch.tensor([[True, True, False], [False] * 3]))
    assert weights[1].tolist() == [0, 0, 0]
    torch.testing.assert_close(weights[0, :2], logits[0, :2].softmax(0))
    weights.square().sum().backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[1].any()


@pytest.mark.parametrize(
    ("kind", "argument"), [(CodesAttention, "codes_attention_heads"), (CandidateAttention, "poly_attention_heads")]
)
@pytest.mark.parametrize("heads", [0, 5, -3])
def test_heads_that_do_not_divide_the_dimension(kind, argument, heads):
    with pytest.raises(ConfigError, match=f"{argument} is {heads}; the encoder's dimension, 12") as error:
        kind(DIM, heads)
    assert error.value.argument == argument
