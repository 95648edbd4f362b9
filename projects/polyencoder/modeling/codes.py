"""A poly-encoder's m context vectors: the paper's four kinds (Section 4.4, Appendix C), and turns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from polyencoder.config import Attention, ContextVectors, TurnEnd
from polyencoder.modeling.multihead import CodesAttention, masked_softmax
from polyencoder.modeling.tracing import is_traced
from polyencoder.scoring import ContextEncoding
from polyencoder.text.tokens import TokenBatch

TURN_TERMS = ("whole context", "turn", "latest turn")
TURN_WEIGHTS = (0.5, 0.3, 0.2)  # a fit to the first batch would weigh the latest turn alone, and train worse


def parse_turn_end(separator: Sequence[int]) -> TurnEnd:
    """Converts the separator's tokens to the end of a turn that `number_turns` takes."""
    return separator[0] if len(separator) == 1 else tuple(separator) or None


def number_turns(ids: Tensor, mask: Tensor, *, end: TurnEnd) -> Tensor:
    """Numbers each token's turn: [batch, length], below 0 at padding. A turn ends with the token or tokens `end`."""
    if end is None:
        return mask.long() - 1
    last, *before = (end,) if isinstance(end, int) else reversed(end)
    is_end = (ids == last) & mask
    for back, token in enumerate(before, start=1):
        is_end = is_end & pad(ids == token, (back, 0))[:, : ids.size(1)]
    ends = is_end.long()
    return (ends.cumsum(1) - ends).masked_fill(~mask, -1)


def compute_turn_means(outputs: Tensor, token_turns: Tensor, numbers: Tensor) -> Tensor:
    """Means of outputs [batch, length, dim] by `token_turns` (-1: padding): [batch, turns, dim], 0 without tokens."""
    belongs = token_turns.unsqueeze(1) == numbers.unsqueeze(-1)  # [batch, turns, length]
    return (belongs / belongs.sum(-1, keepdim=True).clamp(min=1)).to(outputs.dtype) @ outputs


class TrainedCodes(nn.Module):
    """m trained codes, each attending over all outputs: y_i = sum_j softmax_j(c_i . h_j) h_j (Section 4.4)."""

    def __init__(self, n_codes: int, dim: int, *, attention: Attention = "basic", heads: int = 1) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(dim) if attention == "sqrt" else 1.0
        # Small enough that each code's vector starts near the mean of the outputs (a bi-encoder with the reduction
        # `mean`), large enough that codes differ.
        self.codes = nn.Parameter(torch.randn(n_codes, dim) / math.sqrt(dim))
        self.attention = CodesAttention(dim, heads) if attention == "multihead" else None

    def forward(self, outputs: Tensor, tokens: TokenBatch) -> ContextEncoding:
        """Outputs [batch, length, dim] -> [batch, m, dim]."""
        if self.attention is not None:
            return ContextEncoding(self.attention(self.codes, outputs, tokens.mask), None)
        return ContextEncoding(self.compute_weights(outputs, tokens) @ outputs, None)

    def compute_weights(self, outputs: Tensor, tokens: TokenBatch) -> Tensor:
        """The weight of each output in each context vector, averaged over heads: [batch, m, length]."""
        if self.attention is not None:
            return self.attention.compute_weights(self.codes, outputs, tokens.mask).mean(1)
        logits = self.codes @ outputs.transpose(1, 2) * self.scale
        return masked_softmax(logits, tokens.mask.unsqueeze(1))


class FixedVectors(nn.Module):
    """Context vectors without trained weights: outputs, or means of outputs."""

    def compute_weights(self, outputs: Tensor, tokens: TokenBatch) -> Tensor:
        """The weight of each output in each context vector: [batch, m, length]."""
        length = outputs.size(1)
        encoded: ContextEncoding = self(torch.eye(length, device=outputs.device).expand(len(outputs), -1, -1), tokens)
        return encoded.vectors


class FirstOutputs(FixedVectors):
    """The first m outputs; fewer for a shorter context (Appendix C)."""

    def __init__(self, n_codes: int) -> None:
        super().__init__()
        self.n_codes = n_codes

    def forward(self, outputs: Tensor, tokens: TokenBatch) -> ContextEncoding:
        """Outputs [batch, length, dim] -> [batch, min(m, length), dim]."""
        return ContextEncoding(outputs[:, : self.n_codes], tokens.mask[:, : self.n_codes])


class LastOutputs(FixedVectors):
    """The last m outputs and, with `with_first`, the first one h_1 unless it is among them (Appendix C)."""

    def __init__(self, n_codes: int, *, with_first: bool = False) -> None:
        super().__init__()
        self.n_codes = n_codes
        self.with_first = with_first

    def forward(self, outputs: Tensor, tokens: TokenBatch) -> ContextEncoding:
        """Outputs [batch, length, dim] -> [batch, min(m, length) (+ 1), dim], in the text's order."""
        mask = tokens.mask
        width = min(self.n_codes, outputs.size(1))
        first_of_last = mask.sum(1, keepdim=True) - width  # [batch, 1], negative in a short context
        positions = first_of_last + torch.arange(width, device=outputs.device)
        present = positions >= 0
        if self.with_first:
            positions = torch.cat([torch.zeros_like(first_of_last), positions], dim=1)
            present = torch.cat([first_of_last > 0, present], dim=1)
        index = positions.clamp(min=0).unsqueeze(-1).expand(-1, -1, outputs.size(-1))
        return ContextEncoding(outputs.gather(1, index), present)


class TurnMeans(FixedVectors):
    """The mean output of each of the latest m turns; `turn_end`: the id or ids that end a turn."""

    def __init__(self, n_codes: int, *, turn_end: TurnEnd) -> None:
        super().__init__()
        self.n_codes, self.turn_end = n_codes, turn_end

    def forward(self, outputs: Tensor, tokens: TokenBatch) -> ContextEncoding:
        """Outputs [batch, length, dim] -> [batch, min(m, turns), dim], the latest turn last."""
        token_turns = number_turns(tokens.ids, tokens.mask, end=self.turn_end)
        last = token_turns.amax(1, keepdim=True)  # [batch, 1], below 0 without any token
        # A graph has the same number of vectors for every batch.
        width = self.n_codes if is_traced() or not len(last) else min(self.n_codes, max(1, int(last.max()) + 1))
        numbers = last + torch.arange(1 - width, 1, device=outputs.device)
        present = (token_turns.unsqueeze(1) == numbers.unsqueeze(-1)).any(-1) & (numbers >= 0)
        return ContextEncoding(compute_turn_means(outputs, token_turns, numbers.clamp(min=0)), present)


def build_codes(
    kind: ContextVectors, n_codes: int, dim: int, *, attention: Attention, heads: int = 1, turn_end: TurnEnd = None
) -> TrainedCodes | FixedVectors:
    """Builds the module for a kind of context vectors."""
    if kind == "turns":
        return TurnMeans(n_codes, turn_end=turn_end)
    if kind == "codes":
        return TrainedCodes(n_codes, dim, attention=attention, heads=heads)
    if kind == "n_first":
        return FirstOutputs(n_codes)
    return LastOutputs(n_codes, with_first=kind == "first_n_last")
