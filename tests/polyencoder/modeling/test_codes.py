from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from polyencoder.config import RankerConfig
from polyencoder.modeling.codes import TrainedCodes, build_codes, number_turns, parse_turn_end
from polyencoder.text.tokens import TokenBatch

KINDS = ["codes", "n_first", "n_last", "first_n_last", "turns"]
DIM = 6
END = 2  # the token that ends a turn


def reference(kind: str, outputs: torch.Tensor, m: int, codes: torch.Tensor | None, scale: float) -> torch.Tensor:
    """The context vectors [m', dim] of one context from its own outputs [length, dim], without any padding."""
    if kind == "codes":
        assert codes is not None
        return torch.stack([torch.softmax(scale * (outputs @ code), dim=0) @ outputs for code in codes])
    if kind == "n_first":
        return outputs[:m]
    if kind == "turns":
        parts = outputs.split([3] * (len(outputs) // 3) + ([len(outputs) % 3] if len(outputs) % 3 else []))
        return torch.stack([part.mean(0) for part in parts[-m:]])
    last = outputs[-m:]
    if kind == "first_n_last" and len(outputs) > m:
        return torch.cat([outputs[:1], last])
    return last


def batch(lengths: list[int], *, extra: int = 0) -> tuple[torch.Tensor, TokenBatch]:
    """Random outputs, with huge numbers at the padding, which no result may show; their tokens, three to a turn."""
    width = max(lengths) + extra
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    outputs = torch.randn(len(lengths), width, DIM, generator=torch.Generator().manual_seed(0))
    ids = (torch.arange(width) % 3).repeat(len(lengths), 1)
    return outputs.masked_fill(~mask.unsqueeze(-1), 1e6), TokenBatch(ids, mask)


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("lengths", [[1], [1, 2, 3], [5, 3, 1, 8], [3, 3], [4], [2, 1]])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("attention", ["basic", "sqrt"])
@pytest.mark.parametrize("kind", KINDS)
def test_like_one_context_at_a_time_without_padding(kind, attention, m, lengths, extra):
    torch.manual_seed(0)
    codes = build_codes(kind, m, DIM, attention=attention, turn_end=END)
    outputs, tokens = batch(lengths, extra=extra)
    context = codes(outputs, tokens)
    real = torch.ones(context.vectors.shape[:2], dtype=torch.bool) if context.mask is None else context.mask
    scale = 1 / math.sqrt(DIM) if attention == "sqrt" else 1.0
    for row, length in enumerate(lengths):
        expected = reference(kind, outputs[row, :length], m, getattr(codes, "codes", None), scale)
        torch.testing.assert_close(context.vectors[row][real[row]], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_never_more_vectors_than_asked(kind):
    outputs, tokens = batch([15, 2])
    context = build_codes(kind, 4, DIM, attention="basic", turn_end=END)(outputs, tokens)
    assert context.n_codes == (5 if kind == "first_n_last" else 4)


@pytest.mark.parametrize("attention", ["basic", "sqrt", "multihead"])
def test_codes_of_a_context_without_any_token_are_finite(attention):
    codes = TrainedCodes(4, DIM, attention=attention, heads=2)
    outputs, tokens = batch([2, 3])
    tokens.mask[0] = False
    outputs.requires_grad_(True)
    vectors = codes(outputs, tokens).vectors
    torch.testing.assert_close(vectors[0], torch.zeros(4, DIM))
    torch.testing.assert_close(vectors[1:], codes(outputs[1:], tokens.select(torch.tensor([1]))).vectors)
    vectors.square().sum().backward()
    assert torch.isfinite(codes.codes.grad).all()
    assert not outputs.grad[0].any()


def test_codes_are_trained_and_the_rest_is_not():
    assert [name for name, _ in TrainedCodes(4, DIM).named_parameters()] == ["codes"]
    for kind in KINDS[1:]:
        assert not list(build_codes(kind, 4, DIM, attention="basic").parameters())


def test_a_turn_without_tokens_and_a_context_without_any_are_left_out():
    outputs, tokens = batch([5, 3, 3])
    tokens.ids[0, :5] = torch.tensor([1, END, END, 1, 1])  # its second turn is the end alone
    tokens.mask[1] = False
    codes = build_codes("turns", 2, DIM, attention="basic", turn_end=END)
    context = codes(outputs, tokens)
    torch.testing.assert_close(context.vectors[0], torch.stack([outputs[0, 2], outputs[0, 3:5].mean(0)]))
    assert context.mask.tolist() == [[True, True], [False, False], [False, True]]
    assert torch.isfinite(context.vectors).all()


IDS = torch.tensor([[3, 8, 7, 8, 7, 5, 8, 0], [7, 8, 7, 8, 4, 7, 0, 0], [8, 0, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("end", "numbers"),
    [
        # of several tokens, the last of which is also within turns
        ((7, 8), [[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 1, 1, 2, 2, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]),
        (8, [[0, 0, 1, 1, 2, 2, 2, -1], [0, 0, 1, 1, 2, 2, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]),
        (None, [[0, 0, 0, 0, 0, 0, 0, -1], [0, 0, 0, 0, 0, 0, -1, -1], [0, -1, -1, -1, -1, -1, -1, -1]]),
    ],
)
def test_turns_end_at_whole_separators(end, numbers, make_config):
    assert number_turns(IDS, IDS != 0, end=end).tolist() == numbers
    config = replace(make_config("late"), turn_end=end)
    assert RankerConfig.from_json(config.to_json(), origin="here") == config


def test_what_ends_a_turn_is_the_separator():
    assert [parse_turn_end(ids) for ids in ([], [5], [5, 6])] == [None, 5, (5, 6)]
