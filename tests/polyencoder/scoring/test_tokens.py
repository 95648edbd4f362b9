"""Token vectors: MaxSim against loops over single tokens, and padding that changes no maximum."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyencoder.scoring import tokens
from polyencoder.scoring.tokens import (
    Texts,
    TokenVectors,
    compute_max_similarities,
    multiply,
    pack_candidates,
    stack_texts,
)

DIM = 6


def text(length: int, turns: int = 1) -> Texts:
    """One text of random unit vectors, unpadded."""
    return Texts(
        torch.randn(1, DIM),
        F.normalize(torch.randn(1, length, DIM), dim=-1),
        torch.rand(1, length).softmax(-1),
        F.normalize(torch.randn(1, turns, DIM), dim=-1),
    )


def plain(context: Texts, candidate: Texts) -> tuple[float, float]:
    """Both sums of one pair, one token at a time."""
    best_of = [max(float(x @ c) for x in context.tokens[0]) for c in candidate.tokens[0]]
    best_for = [max(float(x @ c) for c in candidate.tokens[0]) for x in context.tokens[0]]
    forth = sum(float(w) * value for w, value in zip(candidate.weights[0], best_of, strict=True))
    back = sum(float(w) * value for w, value in zip(context.weights[0], best_for, strict=True))
    return forth, back


@pytest.mark.parametrize("at_once", [1, 90, 1 << 23])
@pytest.mark.parametrize("separate", [False, True])
def test_like_one_pair_at_a_time_whatever_is_in_memory_at_once(monkeypatch, at_once, separate):
    """Shared candidates or each context's own, padded to the longest."""
    sizes = []
    monkeypatch.setattr(tokens, "SIMILARITIES", at_once)
    monkeypatch.setattr(tokens, "multiply", lambda *both: sizes.append((product := multiply(*both)).numel()) or product)
    contexts, candidates = [text(n) for n in (4, 1, 7)], [text(n) for n in (2, 8, 3, 1)]
    left, right = stack_texts(contexts), stack_texts(candidates)
    right_tokens, weights = right.tokens, right.weights
    if separate:
        right_tokens, weights = right_tokens.expand(3, *right_tokens.shape), weights.expand(3, *weights.shape)
    forth, back = compute_max_similarities(left.tokens, left.weights, right_tokens, weights)
    expected = torch.tensor([[plain(context, candidate) for candidate in candidates] for context in contexts])
    torch.testing.assert_close(torch.stack([forth, back], -1), expected, rtol=1e-5, atol=1e-5)
    assert max(sizes) <= max(at_once, 7 * 8)


def test_the_gradient_goes_to_the_most_similar_token_alone():
    context = F.normalize(torch.randn(1, 3, DIM), dim=-1)
    candidate = F.normalize(torch.randn(1, 4, DIM), dim=-1).requires_grad_()
    forth, _ = compute_max_similarities(context, torch.ones(1, 3) / 3, candidate, torch.tensor([[1.0, 0, 0, 0]]))
    forth.sum().backward()
    nearest = (context[0] @ candidate[0, 0]).argmax()
    torch.testing.assert_close(candidate.grad[0, 0], context[0, nearest])
    assert not candidate.grad[0, 1:].any()


def test_texts_in_one_batch_are_what_they_were():
    parts = [text(3, turns=2), text(1), text(5, turns=4)]
    whole = stack_texts(parts)
    assert whole.tokens.shape == (3, 5, DIM)
    assert whole.turns.shape == (3, 4, DIM)
    torch.testing.assert_close(whole.weights.sum(1), torch.ones(3))
    for row, part in enumerate(parts):
        length, turns = part.tokens.size(1), part.turns.size(1)
        assert whole.vectors[row].equal(part.vectors[0])
        assert whole.tokens[row, :length].equal(part.tokens[0])
        assert all(padding.equal(part.tokens[0, 0]) for padding in whole.tokens[row, length:])
        assert not whole.weights[row, length:].any()
        assert whole.turns[row, :turns].equal(part.turns[0])
        assert whole.turns[row, -1].equal(part.turns[0, -1])  # everybody's latest turn is in the last column
    for row, part in enumerate(whole.split()):
        assert part.tokens.equal(whole.select(torch.tensor([row])).tokens)


@pytest.mark.parametrize("lengths", [[1], [3, 1, 4], [2, 2]])
def test_single_candidates_as_a_batch(lengths):
    singles = [TokenVectors(torch.randn(DIM), torch.randn(length, 2)) for length in lengths]
    vectors, packed, mask = pack_candidates(singles)
    assert mask.sum(1).tolist() == lengths
    for row, single in enumerate(singles):
        assert vectors[row].equal(single.vector)
        assert packed[row][mask[row]].equal(single.tokens)
        rest: Tensor = packed[row][~mask[row]]
        assert rest.equal(single.tokens[:1].expand(len(rest), -1))
