from __future__ import annotations

from typing import get_args

import pytest
import torch

from polyencoder import Ranker
from polyencoder.config import DenseConfig, Reduction
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.errors import ConfigError
from polyencoder.modeling.pooling import build_dense, reduce


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


@pytest.mark.parametrize("reduction", ["mean", "max", "last", "first", "mean_except_first"])
def test_skipped_tokens_are_not_pooled(reduction):
    outputs, mask = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    kind = "mean" if reduction == "mean_except_first" else reduction  # the first is the start token, before the prompt
    expected = reduce(outputs[:, 2:], mask[:, 2:], reduction=kind)
    torch.testing.assert_close(reduce(outputs, mask, reduction=reduction, skip=2), expected)


LAYERS = (DenseConfig(size=6, activation="tanh"), DenseConfig(size=3, bias=False))


def test_layers():
    dense = build_dense(4, LAYERS)
    vectors = torch.randn(5, 4)
    torch.testing.assert_close(dense(vectors), dense[2](torch.tanh(dense[0](vectors))))
    assert build_dense(4, ()) is None


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "share"), [("bi", True), ("poly", False)])
def test_rankers_with_dense_layers(make_ranker, tmp_path, architecture, share):
    """Vectors have the size of the last layer; candidates a copy of their own; saved, loaded and taken over whole."""

    ranker = make_ranker(architecture, dense=LAYERS, share_encoders=share, reduction="mean", normalize=True)
    assert ranker.encode_candidates(["hello"]).shape == (1, 3)
    assert ranker.encode_contexts(["hello"]).vectors.shape[-1] == ranker.model.dim == 3
    assert any(name.startswith("own_candidate_dense") for name in ranker.model.state_dict()) != share
    scores = torch.as_tensor(ranker.score(["hello"], ["no", "yes"]))
    ranker.save_pretrained(tmp_path / "saved")
    again = Ranker.from_pretrained(tmp_path / "saved", device="cpu")
    assert torch.equal(torch.as_tensor(again.score(["hello"], ["no", "yes"])), scores)
    assert compute_model_fingerprint(again.model, again.text) == compute_model_fingerprint(ranker.model, ranker.text)
    other = Ranker.from_backbone(tmp_path / "saved", "bi", device="cpu")
    assert torch.equal(
        torch.as_tensor(other.encode_candidates(["hello"])), torch.as_tensor(ranker.encode_candidates(["hello"]))
    )
    with pytest.raises(ConfigError, match="has Dense layers behind its pooling, which a late-interaction encoder does"):
        Ranker.from_backbone(tmp_path / "saved", "late", device="cpu")
