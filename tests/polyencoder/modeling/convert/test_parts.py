"""Each part against a plain version of it: loops over texts, tokens and heads, without masks or fused products."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.blocks import Block, Embeddings, SelfAttention, activate, feed_forward
from polyencoder.modeling.convert.outputs import AnnealedScale, FeedForward, Reduction
from polyencoder.modeling.convert.rows import PackedRows
from tests.polyencoder.modeling.convert.conftest import TINY

LENGTHS = [1, 7, 3, 0, 5]


@pytest.fixture
def rows() -> PackedRows:
    return PackedRows.from_mask(torch.arange(7) < torch.tensor(LENGTHS)[:, None])


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(sum(LENGTHS), 12)


def config(**fields) -> ConvertConfig:
    return ConvertConfig(**{**TINY, **fields})


def test_rows(rows):
    padded = torch.arange(5 * 7).view(5, 7)
    packed = rows.take(padded)
    assert packed.tolist() == [0, *range(7, 14), 14, 15, 16, *range(28, 33)]
    assert rows.positions.tolist() == [0, *range(7), 0, 1, 2, *range(5)]
    put = rows.put(packed[:, None].float()).squeeze(2)
    assert torch.equal(put, padded.float() * rows.mask)


def test_positions_repeat_when_both_tables_do():
    part = Embeddings(config())
    ids, positions = torch.full((40,), 7), torch.arange(40)
    outputs = part(ids, positions)
    for i in range(40):
        total = part.words.weight[7] * math.sqrt(12) + part.positions[0][i % 5] + part.positions[1][i % 3]
        torch.testing.assert_close(outputs[i], F.layer_norm(total, (12,), part.norm.weight, part.norm.bias, 1e-12))
    torch.testing.assert_close(outputs[:15], outputs[15:30])
    assert len({tuple(row.tolist()) for row in outputs[:15]}) == 15  # 5 and 3 have no common divisor


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 48])
@torch.no_grad()
def test_attention(inputs, rows, heads, bias, limit):
    part = SelfAttention(config(attention_heads=heads, relative_bias=bias), limit=limit)
    if bias:
        part.bias.normal_()
    outputs, start = part(inputs, rows), 0
    queries, keys, values = part.queries_keys_values.weight.view(3, heads, 4, 12)
    for length in LENGTHS:
        text = inputs[start : start + length]
        for i in range(length):
            near = [j for j in range(length) if abs(i - j) <= limit]
            heard = []
            for head in range(heads):
                scores = torch.tensor(
                    [
                        float(queries[head] @ text[i] @ (keys[head] @ text[j])) / math.sqrt(4)
                        + (float(part.bias[j - i + limit]) if bias else 0)
                        for j in near
                    ]
                )
                weights = scores.softmax(0)
                heard.append(sum(w * (values[head] @ text[j]) for w, j in zip(weights, near, strict=True)))
            torch.testing.assert_close(outputs[start + i], part.output.weight @ torch.cat(heard), rtol=1e-4, atol=1e-5)
        start += length


@torch.no_grad()
def test_block(inputs, rows):
    part = Block(config(), limit=3)
    part.attention.bias.normal_()
    attended = F.layer_norm(inputs + part.attention(inputs, rows), (12,), eps=1e-12)
    inner = part.inner.weight @ attended.t() + part.inner.bias[:, None]
    outer = part.outer.weight @ (inner / (1 + torch.exp(-1.702 * inner))) + part.outer.bias[:, None]
    torch.testing.assert_close(part(inputs, rows), F.layer_norm(attended + outer.t(), (12,), eps=1e-12))


def test_the_activation_is_near_gelu():
    values = torch.linspace(-6, 6, 1_000)
    assert (activate(values, "gelu") - F.gelu(values)).abs().max() < 0.021
    assert torch.equal(activate(values, "relu"), values.clamp(min=0))


@pytest.mark.parametrize("heads", [1, 2])
@torch.no_grad()
def test_the_fused_reduction_is_attention_then_a_sum(inputs, rows, heads):
    part = Reduction(12, heads=heads, size=4)
    outputs, start = part(inputs, rows), 0
    queries, keys = part.queries_keys.weight.view(2, heads, 4, 12)
    for row, length in enumerate(LENGTHS):
        text = inputs[start : start + length]
        parts = []
        for head in range(heads):
            weights = ((text @ queries[head].t()) @ (text @ keys[head].t()).t()).softmax(1)
            parts.append((weights @ text).sum(0) / math.sqrt(max(1, length)))  # self-attended, then reduced
        torch.testing.assert_close(outputs[row], torch.cat(parts), rtol=1e-4, atol=1e-5)
        start += length
    assert not outputs[LENGTHS.index(0)].any()


@pytest.mark.parametrize("skips", [True, False])
@torch.no_grad()
def test_feed_forward(skips):
    part = FeedForward(24, config(skips=skips))
    skip = torch.nn.Linear(24, 10, bias=False) if skips else None
    inputs = torch.randn(4, 24)
    hidden = F.layer_norm(inputs, (24,), eps=1e-12)
    for i, layer in enumerate(part.layers):
        new = hidden @ layer.weight.t()
        new = new * torch.sigmoid(1.702 * new)
        hidden = F.layer_norm(new + hidden if skips and i > 0 else new, (16,), eps=1e-12)  # the first is 24 to 16
    outputs = hidden @ part.output.weight.t() + (inputs @ skip.weight.t() if skips else 0)
    outputs = F.layer_norm(outputs, (10,), eps=1e-12)
    torch.testing.assert_close(part(inputs, skip), outputs / outputs.norm(dim=1, keepdim=True))
    for layer in part.layers[1:]:
        torch.testing.assert_close(layer.weight @ layer.weight.t(), torch.eye(16), rtol=0, atol=1e-5)  # orthogonal


def test_the_scale_rises_to_the_root_of_the_dimension():
    scale = AnnealedScale(512, over=4)
    scales = []
    for _ in range(6):
        scales.append(scale().item())
        scale.advance()
    top = 512**0.5
    assert scales == pytest.approx([1, 1 + (top - 1) / 4, (1 + top) / 2, 1 + 3 * (top - 1) / 4, top, top])
    again = AnnealedScale(512, over=4)
    again.load_state_dict(scale.state_dict())
    assert again().item() == pytest.approx(top)
    assert AnnealedScale(512, over=0)().item() == pytest.approx(top)


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_feed_forward_1_in_fewer_passes(name):
    torch.manual_seed(0)
    inner, outer = torch.nn.Linear(6, 20), torch.nn.Linear(20, 6)
    inputs, results = torch.randn(9, 6), []
    for run in (
        lambda x: feed_forward(x, inner, outer, activation_name=name),
        lambda x: outer(activate(inner(x), name)),
    ):
        leaf = inputs.clone().requires_grad_()
        outputs = run(leaf)
        gradients = torch.autograd.grad(outputs.square().sum(), [leaf, *inner.parameters(), *outer.parameters()])
        with torch.no_grad():
            again = run(inputs.clone())
        results.append([outputs.detach(), again, *gradients])
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)


def test_without_padding_nothing_is_moved():
    rows = PackedRows.from_mask(torch.ones(2, 3, dtype=torch.bool))
    inputs = torch.randn(6, 4)
    assert rows.put(inputs).data_ptr() == inputs.data_ptr()
    assert torch.equal(rows.take(rows.put(inputs)), inputs)
    padded = PackedRows.from_mask(torch.tensor([[True, True, True], [True, True, False]]))
    assert torch.equal(padded.take(padded.put(inputs[:5])), inputs[:5])


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(0, 3))
def test_sequences_of_like_length_together_give_the_same(lengths, extra):
    """Vectors and gradients, in the order of the batch; also where sequences do not begin at the first place."""
    torch.manual_seed(0)
    attention, reduction = SelfAttention(config(), limit=3).double(), Reduction(12, heads=2, size=4).double()
    width = max(lengths) + 2 * extra
    columns = torch.arange(width)
    mask = (columns >= extra) & (columns < extra + torch.tensor(lengths)[:, None])
    padded = torch.randn(len(lengths), width, 12, dtype=torch.double)
    results = []
    for rows in (PackedRows.from_mask(mask), PackedRows.from_mask_by_length(mask)):
        leaf = padded.clone().requires_grad_()
        outputs = reduction(attention(rows.take(leaf), rows), rows)
        gradient = torch.autograd.grad(outputs.square().sum(), [leaf, *attention.parameters(), *reduction.parameters()])
        positions = rows.restore_order(rows.apply_each(lambda row, part: part.put(row[:, None]).sum(1), rows.positions))
        results.append([outputs.detach(), positions, *gradient])
    for by_row, by_length in zip(*results, strict=True):
        torch.testing.assert_close(by_row, by_length)


def test_a_batch_of_many_lengths_has_little_padding():
    lengths = torch.tensor([60] * 2 + [5] * 100)
    rows = PackedRows.from_mask_by_length(torch.arange(60) < lengths[:, None])
    assert sorted(tuple(part.mask.shape) for part in rows.parts) == [(2, 60), (100, 5)]
    assert PackedRows.from_mask_by_length(torch.ones(9, 60, dtype=torch.bool)).parts == ()
