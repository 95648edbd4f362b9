"""The check of packing: what it finds in encoders that are wrong on purpose, and that it leaves the model unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder.modeling.packing_check import explain_unpacked, gives_first
from polyencoder.modeling.varlen import AttentionOptions
from polyencoder.text import TokenBatch


class Encoder(nn.Module):
    """One layer of plain attention, in a packed row by the packing, as `Backbone` runs one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Identity()

    def attend(self, vectors, mask):
        weights = (vectors @ vectors.transpose(-1, -2)).masked_fill(~mask.unsqueeze(-2), -1e9).softmax(-1)
        return weights @ vectors

    def run(self, tokens: TokenBatch, packing=None, *, ask: bool = True, apart: bool = True, scale: float = 1.0):
        vectors = self.drop(self.words(tokens.ids % 200))
        if packing is None:
            return self.last(self.attend(vectors, tokens.mask))
        row = self.drop(self.words(packing.take(tokens.ids) % 200))
        heads = row.unsqueeze(1)
        attended = packing.attend(heads, heads, heads, AttentionOptions(scale=scale)).flatten(2) if ask else row
        if not apart:
            attended = self.attend(row, torch.ones(row.shape[:2], dtype=torch.bool))
        return packing.put(self.last(attended), *tokens.ids.shape)


@pytest.fixture
def encoder() -> Encoder:
    return Encoder().train()


def reason(encoder: Encoder, *, layers: int = 1, **ways) -> str | None:
    def run(tokens, packing):
        return encoder.run(tokens, packing, **ways)

    return explain_unpacked(encoder, run, layers=layers, longest=40, window=0)


def test_an_encoder_that_computes_the_same_has_no_reason(encoder):
    assert reason(encoder) is None
    assert reason(encoder, scale=1.01) == "tokens attend to other sequences"  # any other outputs


def test_a_layer_that_does_not_ask_the_packing(encoder):
    assert reason(encoder, layers=2) == "1 of its 2 layers use transformers' AttentionInterface"
    assert reason(encoder, ask=False) == "0 of its 1 layers use transformers' AttentionInterface"


def test_tokens_that_see_other_sequences(encoder):
    assert reason(encoder, apart=False) == "tokens attend to other sequences"


def test_an_encoder_that_cannot_run_gives_the_first_line_of_its_error(encoder):
    def run(tokens, packing):
        if packing is not None:
            raise TypeError("no position_ids\nhere is more")
        return encoder.run(tokens)

    assert explain_unpacked(encoder, run, layers=1, longest=40, window=0) == "no position_ids"


def test_the_model_is_left_as_it_was(encoder):
    """In training mode and in 16 bits: it is compared without dropout, in float32, at full precision."""
    encoder.to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    seen = []

    def run(tokens, packing):
        seen.append((encoder.training, encoder.drop.training, encoder.words.weight.dtype))
        return encoder.run(tokens)

    torch.set_float32_matmul_precision("medium")
    try:
        explain_unpacked(encoder, run, layers=0, longest=40, window=0)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {(False, False, torch.float32)}
    assert encoder.training
    assert encoder.drop.training
    assert all(
        tensor.dtype == torch.bfloat16 and tensor.equal(before[name]) for name, tensor in encoder.state_dict().items()
    )


@pytest.mark.parametrize(
    ("change", "first", "expected"),
    [
        (nn.Identity(), 1.0, True),
        (nn.Identity(), 1.01, False),  # other first outputs
        (nn.LayerNorm(8), 1.0, False),  # another layer
    ],
)
def test_first_outputs_must_be_those_of_all(encoder, change, first, expected):
    def run(tokens, packing):
        return encoder.run(tokens)

    def run_first(tokens, packing):
        return first * encoder.run(tokens)[:, :1]

    is_same = gives_first(encoder, run, run_first, change=lambda: setattr(encoder, "last", change), longest=40)
    assert is_same is expected


def test_an_error_of_the_changed_layer_is_a_no(encoder):
    def broken() -> None:
        raise AttributeError

    assert not gives_first(encoder, lambda tokens, _: encoder.run(tokens), lambda *_: None, change=broken, longest=40)
