from __future__ import annotations

from typing import get_args

import pytest
import torch

from polyencoder.config import Reduction
from polyencoder.modeling.pooling import reduce


def reference(reduction: str, outputs: torch.Tensor, first_m: int) -> torch.Tensor:
    """One vector from the outputs [length, dim] of one sequence, without any padding."""
    if reduction == "first":
        return outputs[0]
    if reduction == "max":
        return torch.stack([max(column) for column in outputs.T])
    if reduction == "last":
        return outputs[-1]
    if reduction == "weighted_mean":
        return sum(i * output for i, output in enumerate(outputs, 1)) / sum(range(1, len(outputs) + 1))
    if reduction == "mean_except_first":
        return torch.stack(list(outputs)[1:]).mean(dim=0) if len(outputs) > 1 else torch.zeros(outputs.size(1))
    return (outputs[:first_m] if reduction == "mean_first" else outputs).mean(dim=0)


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("lengths", [[1], [5, 3, 1, 8], [3, 3], [2, 1]])
@pytest.mark.parametrize("reduction", get_args(Reduction))
def test_like_one_sequence_at_a_time_without_padding(reduction, lengths, extra):
    width = max(lengths) + extra
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    outputs = torch.randn(len(lengths), width, 6, generator=torch.Generator().manual_seed(0)) - 3
    outputs = outputs.masked_fill(~mask.unsqueeze(-1), 1e6)  # no result may show what is at the padding
    vectors = reduce(outputs, mask, reduction=reduction, first_m=3)
    expected = torch.stack([reference(reduction, outputs[i, :n], 3) for i, n in enumerate(lengths)])
    torch.testing.assert_close(vectors, expected)


def test_mean_first_of_many_is_the_mean():
    outputs, mask = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    everything = reduce(outputs, mask, reduction="mean")
    torch.testing.assert_close(reduce(outputs, mask, reduction="mean_first", first_m=64), everything)


@pytest.mark.parametrize("reduction", ["mean", "max", "last", "first", "mean_except_first"])
def test_skipped_tokens_are_not_pooled(reduction):
    outputs, mask = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    own = "mean" if reduction == "mean_except_first" else reduction  # the first is the start token, before the prompt
    expected = reduce(outputs[:, 2:], mask[:, 2:], reduction=own)
    torch.testing.assert_close(reduce(outputs, mask, reduction=reduction, skip=2), expected)
