"""A row of tokens has every token of a batch, and attention in it stays within sequences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.modeling.packing import _build_ragged, pack
from polyencoder.modeling.varlen import AttentionOptions
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

HEADS, DIM = 2, 4


def mask_of(lengths, width=None):
    return torch.arange(width or max(lengths)) < torch.tensor(lengths).unsqueeze(1)


@pytest.mark.parametrize("cost", [0, 2, 1000])
@pytest.mark.parametrize("lengths", [[3, 1, 7, 3], [5], [2, 2], [6, 1]])
def test_every_token_is_there_once_with_its_position(monkeypatch, lengths, cost):
    monkeypatch.setattr("polyencoder.modeling.packing.BLOCK", cost)
    mask = mask_of(lengths, width=9)
    packing = pack(mask)
    real = packing.take(mask)[0]
    assert sorted(packing.indices[real].tolist()) == mask.flatten().nonzero().flatten().tolist()
    assert torch.equal(packing.positions, packing.indices % 9)
    assert sum(count * length for count, length in packing.blocks) == len(real)
    assert bool(real.all()) or cost
    masks = [torch.ones(block) if m is None else m for m, block in zip(packing.masks, packing.blocks, strict=True)]
    assert torch.equal(torch.cat([m.flatten().bool() for m in masks]), real)


def test_what_is_put_back_is_where_it_was_taken_from():
    mask = mask_of([3, 1, 7, 3], width=8)
    values = torch.arange(1.0, 33.0).view(4, 8)
    packing = pack(mask)
    outputs = packing.put(packing.take(values).unsqueeze(-1), 4, 8).squeeze(-1)
    assert torch.equal(outputs[mask], values[mask])


def test_like_lengths_are_one_block():
    assert pack(mask_of([40, 38, 3, 39, 3])).blocks == [(2, 3), (3, 40)]


def test_a_sequence_without_tokens_gets_one():
    packing = pack(mask_of([0, 2], width=3))
    assert sorted(packing.indices.tolist()) in ([0, 3, 4], [0, 1, 3, 4])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 40), st.booleans())
def test_rows_that_are_cut_are_the_same_sequences_in_their_order(lengths, tokens, learns):
    packing = pack(mask_of(lengths, width=9), training=learns)
    rows = packing.cut(tokens)
    for name in ("indices", "positions"):
        assert torch.equal(torch.cat([getattr(row, name) for row in rows]), getattr(packing, name))
    together = [(length, mask) for row in rows for length, mask in sequences(row)]
    for (length, mask), (whole, real) in zip(together, sequences(packing), strict=True):
        assert length == whole
        assert torch.equal(mask, real)
    longest = max(length for length, _ in together)
    assert all(len(row.indices) < tokens + longest for row in rows)
    assert len(rows) == 1 or all(len(row.indices) > 0 for row in rows)


def sequences(packing):
    """The length of each with its padding, and which of it is none."""
    for (count, length), mask in zip(packing.blocks, packing.masks, strict=True):
        for row in range(count):
            yield length, torch.ones(length, dtype=torch.bool) if mask is None else mask[row].flatten()


@pytest.mark.parametrize("cost", [0, 2, 1000])
def test_attention_stays_within_sequences(monkeypatch, cost):
    monkeypatch.setattr("polyencoder.modeling.packing.BLOCK", cost)
    mask = mask_of([3, 1, 7, 3])
    torch.manual_seed(0)
    padded = [torch.randn(4, 7, HEADS * DIM, requires_grad=True) for _ in range(3)]

    def heads(rows):
        return rows.unflatten(-1, (HEADS, DIM)).transpose(1, 2)

    packing = pack(mask)
    rows = [heads(tensor.flatten(0, 1)[packing.indices].unsqueeze(0)) for tensor in padded]
    together = packing.put(packing.attend(*rows).flatten(2), 4, 7)[mask]
    alone = F.scaled_dot_product_attention(*map(heads, padded), attn_mask=mask[:, None, None])
    alone = alone.transpose(1, 2).flatten(2)[mask]
    torch.testing.assert_close(together, alone)
    for ours, theirs in zip(
        torch.autograd.grad(together.square().sum(), padded),
        torch.autograd.grad(alone.square().sum(), padded),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def alone(q, k, v, lengths, options):
    """Attention of each sequence by itself: rows [tokens, heads, dim]."""
    outputs = []
    for *parts, length in zip(*(row.split(lengths) for row in (q, k, v)), lengths, strict=True):
        query, key, value = (part.transpose(0, 1) for part in parts)
        positions = torch.arange(length)
        near = (positions - positions[:, None]).abs() < (options.window or length)
        scores = torch.zeros(HEADS, length, length) if options.bias is None else options.bias[:, :length, :length]
        scores = scores.masked_fill(~near, float("-inf"))
        outputs.append(F.scaled_dot_product_attention(query, key, value, attn_mask=scores, scale=options.scale))
    return torch.cat([output.transpose(0, 1) for output in outputs])


@mostly_long("kind", ["window", "bias", "plain", "scale"], quick=2)
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_a_row_for_a_gpu_without_a_kernel_is_its_sequences(kind, lengths, seed):
    torch.manual_seed(seed)
    longest = max(1, *lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    packing = _build_ragged(mask)
    sizes = [max(1, length) for length in lengths]  # an empty one has a token of padding
    assert packing.lengths == sizes
    rows = [torch.randn(sum(sizes), HEADS, DIM, requires_grad=True) for _ in range(3)]
    bias = torch.randn(HEADS, longest, longest, requires_grad=True)
    options = {
        "plain": AttentionOptions(),
        "scale": AttentionOptions(scale=0.3),
        "window": AttentionOptions(window=3),
        "bias": AttentionOptions(bias=bias),
    }[kind]
    outputs = packing.attend(*(row.transpose(0, 1)[None] for row in rows), options)[0]
    expected = alone(*rows, sizes, options)
    torch.testing.assert_close(outputs, expected)
    weights = torch.randn_like(outputs)
    inputs = [*rows, bias] if kind == "bias" else rows
    ours = torch.autograd.grad((outputs * weights).sum(), inputs)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs)
    torch.testing.assert_close(ours, theirs)
