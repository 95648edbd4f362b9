"""What went through an encoder, and what share of the rate of products that is."""

from __future__ import annotations

import pytest
import torch

from benchmarks import rate
from benchmarks.rate import encoded, encoder_flops


def test_lengths_of_what_went_through_are_noted(make_ranker):
    ranker = make_ranker("bi")
    with encoded(ranker.model) as seen:
        ranker.encode_candidates(["two dogs", "hello"])
        ranker.encode_contexts([["hi there", "two dogs play"]])
    ranker.encode_candidates(["not noted"])
    expected = [
        ranker.text.candidate_ids(["hello", "two dogs"]),
        [ranker.text.context_ids(["hi there", "two dogs play"])],
    ]
    assert [sorted(lengths) for _, lengths in seen.calls] == [sorted(map(len, ids)) for ids in expected]


def test_a_share_is_operations_by_seconds_by_rate(monkeypatch, make_ranker):
    monkeypatch.setattr(rate, "product_rate", lambda shapes, *, dtype, clock: 1e6)
    ranker = make_ranker("bi")
    with encoded(ranker.model) as seen:
        ranker.encode_candidates(["two dogs"])
    flops = encoder_flops(ranker.model.config.backbone, seen.calls[0][1])
    assert seen.share(2.0, dtype=torch.float32) == pytest.approx(flops / 2e6)
    assert seen.share(2.0, dtype=torch.float32, training=True) == pytest.approx(3 * flops / 2e6)
