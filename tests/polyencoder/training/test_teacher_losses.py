"""The losses of distillation against what they say, written as loops over one example."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.training.losses import distillation_kl, margin_mse

pytestmark = pytest.mark.slow

ABSENT = -math.inf


@st.composite
def batches(draw):
    """(scores, teacher, labels) of a few examples; some candidates absent, but never a label."""
    batch, n = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    scores = 5 * torch.randn(batch, n, generator=generator)
    teacher = 5 * torch.randn(batch, n, generator=generator)
    labels = torch.randint(n, (batch,), generator=generator)
    absent = (torch.rand(batch, n, generator=generator) < 0.4).scatter(1, labels.unsqueeze(1), False)
    if draw(st.booleans()):
        scores = scores.masked_fill(absent, ABSENT)  # as for an example with fewer candidates than others
    return scores.requires_grad_(), teacher.masked_fill(absent, ABSENT), labels


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([0.5, 1.0, 3.0]))
def test_kl_is_the_divergence_of_two_softmaxes(batch, temperature):
    scores, teacher, _ = batch
    losses = distillation_kl(scores, teacher, temperature=temperature)
    for loss, ours, theirs in zip(losses.tolist(), scores.tolist(), teacher.tolist(), strict=True):
        pairs = [(s / temperature, t / temperature) for s, t in zip(ours, theirs, strict=True) if t != ABSENT]
        sum_q, sum_p = (math.fsum(math.exp(pair[i]) for pair in pairs) for i in (0, 1))
        expected = math.fsum(
            math.exp(t) / sum_p * (math.log(math.exp(t) / sum_p) - math.log(math.exp(s) / sum_q)) for s, t in pairs
        )
        assert loss == pytest.approx(temperature**2 * expected, rel=1e-3, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_margin_mse_compares_the_margins_to_the_label(batch):
    scores, teacher, labels = batch
    losses = margin_mse(scores, teacher, labels)
    rows = zip(losses.tolist(), scores.tolist(), teacher.tolist(), labels.tolist(), strict=True)
    for loss, ours, theirs, label in rows:
        squares = [
            ((ours[label] - s) - (theirs[label] - t)) ** 2
            for j, (s, t) in enumerate(zip(ours, theirs, strict=True))
            if j != label and t != ABSENT
        ]
        expected = sum(squares) / len(squares) if squares else 0.0
        assert loss == pytest.approx(expected, rel=1e-3, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_gradients_are_finite_and_leave_out_what_is_absent(batch):
    scores, teacher, labels = batch
    for loss in (distillation_kl(scores, teacher), margin_mse(scores, teacher, labels)):
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        assert gradient.isfinite().all()
        assert (gradient[teacher == ABSENT] == 0).all()
