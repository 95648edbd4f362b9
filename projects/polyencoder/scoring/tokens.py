"""Token vectors: MaxSim of contexts and candidates, texts with their tokens as padded batches or one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SIMILARITIES = 1 << 23  # of tokens that are in memory at once


class TokenVectors(NamedTuple):
    """The vectors of one candidate."""

    vector: Tensor
    """[dim]"""
    tokens: Tensor
    """[tokens, token_dim], at least one, each of length 1, for a late-interaction encoder; empty for other models."""


@dataclass(frozen=True)
class Texts:
    """The vectors of a batch of contexts or candidates that are compared.

    vectors: [batch, dim], the bi-encoder's. tokens: [batch, length, token_dim] of length 1, padded with the first
    token, which changes no maximum. weights: [batch, length] of the tokens, 0 at padding, with the sum 1.
    turns: [batch, turns, dim] of length 1, a context's, padded with its latest turn, so that the last column has every
    context's latest turn. A candidate has a single turn, its vector.
    """

    vectors: Tensor
    tokens: Tensor
    weights: Tensor
    turns: Tensor

    def select(self, rows: Tensor) -> Texts:
        """Selects rows, [n] or [batch, n]."""
        return self.map_tensors(lambda tensor: tensor[rows])

    def split(self) -> list[Texts]:
        """Every text as a batch of one, a view."""
        columns = zip(
            *(tensor.split(1) for tensor in (self.vectors, self.tokens, self.weights, self.turns)), strict=True
        )
        return [Texts(*row) for row in columns]

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Texts:
        """Applies `change` to every tensor."""
        return Texts(change(self.vectors), change(self.tokens), change(self.weights), change(self.turns))


def stack_texts(parts: Sequence[Texts]) -> Texts:
    """Concatenates batches of texts, padded with tokens and turns that change no maximum."""
    length, turns = max(part.tokens.size(1) for part in parts), max(part.turns.size(1) for part in parts)

    def pad_longer(part: Texts) -> Texts:
        extra_tokens, extra_turns = length - part.tokens.size(1), turns - part.turns.size(1)
        return Texts(
            part.vectors,
            torch.cat([part.tokens, part.tokens[:, :1].expand(-1, extra_tokens, -1)], dim=1),
            F.pad(part.weights, (0, extra_tokens)),
            torch.cat([part.turns, part.turns[:, -1:].expand(-1, extra_turns, -1)], dim=1),
        )

    padded = [pad_longer(part) for part in parts]
    return Texts(
        *(torch.cat([getattr(part, name) for part in padded]) for name in ("vectors", "tokens", "weights", "turns"))
    )


def pack_candidates(candidates: Sequence[TokenVectors]) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates as a batch, padded as `Texts`: vectors [n, dim], tokens [n, longest, token_dim], mask [n, longest]."""
    vectors, rows = zip(*candidates, strict=True)
    tokens, lengths = torch.cat(rows), torch.tensor([*map(len, rows)], device=rows[0].device)
    columns = torch.arange(int(lengths.max()), device=tokens.device)
    mask = columns < lengths.unsqueeze(1)
    positions = (lengths.cumsum(0) - lengths).unsqueeze(1) + columns * mask
    return torch.stack(vectors), tokens[positions], mask


def compute_max_similarities(
    contexts: Tensor, context_weights: Tensor, candidates: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """MaxSim in both directions: sum_t weights_t max_l cos(c_t, x_l), and sum_l context_weights_l max_t cos(x_l, c_t).

    At most `SIMILARITIES` of tokens are in memory at once, and for the gradients only the positions of the largest.

    Args:
        contexts: [batch, length, dim], and context_weights [batch, length].
        candidates: [n, tokens, dim], shared by all contexts, or [batch, n, tokens, dim], each context's own.
        weights: of their tokens, [n, tokens] or [batch, n, tokens].

    Returns:
        Both sums, [batch, n], in the dtype of the weights.
    """
    per_context, n = candidates.dim() == 4, candidates.size(-3)
    per_pair = max(1, contexts.size(1) * candidates.size(-2))
    columns = max(1, min(n, SIMILARITIES // per_pair))
    rows = max(1, SIMILARITIES // (per_pair * columns))
    sums = []
    for i in range(0, max(1, len(contexts)), rows):
        here = slice(i, i + rows)
        blocks = []
        for j in range(0, max(1, n), columns):
            block = (here, slice(j, j + columns)) if per_context else (slice(j, j + columns),)
            blocks.append(_compute_block(contexts[here], context_weights[here], candidates[block], weights[block]))
        sums.append(torch.cat(blocks, dim=-1))
    forth, back = torch.cat(sums, dim=1)
    return forth, back


def _compute_block(contexts: Tensor, context_weights: Tensor, candidates: Tensor, weights: Tensor) -> Tensor:
    """Both sums of a block, [2, batch, n]."""
    n, length = candidates.shape[-3:-1]
    similarities = multiply(contexts, candidates.flatten(-3, -2)).unflatten(-1, (n, length))  # [batch, l, n, t]
    context_maxima = similarities.max(-1).values  # [batch, l, n]
    candidate_maxima = similarities.max(1).values  # [batch, n, t]
    with torch.autocast(contexts.device.type, enabled=False):
        forth = (candidate_maxima.to(weights.dtype) * weights).sum(-1)
        back = torch.einsum("bln,bl->bn", context_maxima.to(context_weights.dtype), context_weights)
        return torch.stack([forth, back])


def multiply(contexts: Tensor, candidates: Tensor) -> Tensor:
    """[batch, l, dim] with [n, dim] or [batch, n, dim] -> [batch, l, n]."""
    return contexts @ candidates.transpose(-1, -2)
