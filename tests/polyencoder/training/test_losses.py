"""The losses of labels against their papers' formulas, written in numpy as loops over one list."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.training.losses import (
    LABEL_LOSSES,
    bce,
    lambdaloss,
    listnet,
    make_pairs,
    mse,
    ranknet,
    softmax_loss,
)

ABSENT = -math.inf
EVERY = {"softmax": softmax_loss, **LABEL_LOSSES}


@st.composite
def batches(draw, grades=(0, 0, 1, 2, 3)):
    """(scores, labels) of a few lists, with ties; each has a candidate with a label above 0, some have padding."""
    batch, n = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    of_lists = st.lists(st.integers(-6, 6), min_size=n, max_size=n)
    scores = torch.tensor(draw(st.lists(of_lists, min_size=batch, max_size=batch))) / 2
    of_labels = st.lists(st.sampled_from(grades), min_size=n, max_size=n)
    labels = torch.tensor(draw(st.lists(of_labels, min_size=batch, max_size=batch)), dtype=torch.float)
    right = torch.tensor([draw(st.integers(0, n - 1)) for _ in range(batch)])
    labels.scatter_(1, right.unsqueeze(1), max(grades))
    absent = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=batch, max_size=batch))
    )
    if draw(st.booleans()):
        absent = absent.scatter(1, right.unsqueeze(1), False)
        scores, labels = scores.masked_fill(absent, ABSENT), labels.masked_fill(absent, 0)
    return scores.requires_grad_(), labels


def lists_of(scores, labels):
    """The candidates of each list that there are, as arrays (scores, labels)."""
    for row, numbers in zip(scores.detach().double().numpy(), labels.double().numpy(), strict=True):
        is_real = row != ABSENT
        yield row[is_real], numbers[is_real]


def agrees(losses, expected):
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.2, 0.9]))
def test_softmax_gives_the_right_candidates_together_their_probability(batch, smoothing):
    scores, labels = batch
    expected = []
    for s, y in lists_of(scores, labels):
        p = np.exp(s) / np.exp(s).sum()
        wrong = -np.log(p[y == 0]).mean() if (y == 0).any() else 0.0
        share = smoothing if (y == 0).any() else 0.0
        expected.append(-(1 - share) * np.log(p[y > 0].sum()) + share * wrong)
    agrees(softmax_loss(scores, labels, smoothing=smoothing), expected)


@settings(max_examples=40, deadline=None)
@given(batches(grades=(0,)))
def test_softmax_of_one_right_candidate_is_the_cross_entropy(batch):
    scores, _ = batch
    columns = scores.detach().argmin(1) if scores.isfinite().all() else scores.detach().argmax(1)
    one_hot = torch.zeros_like(scores).scatter(1, columns.unsqueeze(1), 2.0)
    agrees(softmax_loss(scores, one_hot), torch.nn.functional.cross_entropy(scores, columns, reduction="none").detach())


@settings(max_examples=40, deadline=None)
@given(batches(grades=(0, 0.25, 1)))
def test_pointwise_losses_are_means_over_the_candidates(batch):
    scores, labels = batch
    lists = list(lists_of(scores, labels))
    probability = [1 / (1 + np.exp(-s)) for s, _ in lists]
    crossed = [-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean() for p, (_, y) in zip(probability, lists, strict=True)]
    agrees(bce(scores, labels), crossed)
    agrees(mse(scores, labels), [((s - y) ** 2).mean() for s, y in lists])


def test_a_probability_is_at_most_1():
    with pytest.raises(InputError, match="objective bce reads labels as probabilities, but one is 2"):
        bce(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]))


@settings(max_examples=40, deadline=None)
@given(batches())
def test_ranknet_is_the_mean_over_ordered_pairs(batch):
    scores, labels = batch
    expected = []
    for s, y in lists_of(scores, labels):
        n = range(len(s))
        costs = [math.log(1 + math.exp(-(s[i] - s[j]))) for i in n for j in n if y[i] > y[j]]
        expected.append(sum(costs) / len(costs) if costs else 0.0)
    agrees(ranknet(scores, labels), expected)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_listnet_is_the_cross_entropy_of_two_softmaxes(batch):
    scores, labels = batch
    expected = []
    for s, y in lists_of(scores, labels):
        target, predicted = np.exp(y) / np.exp(y).sum(), np.exp(s) / np.exp(s).sum()
        expected.append(-(target * np.log(predicted)).sum())
    agrees(listnet(scores, labels), expected)


def discount(rank):
    return math.log2(1 + rank)


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([0.0, 10.0]))
def test_lambdaloss_weighs_pairs_by_what_they_are_worth(batch, mu):
    scores, labels = batch
    expected = []
    for s, y in lists_of(scores, labels):
        n = range(len(s))
        order = sorted(n, key=lambda i: (-s[i], i))
        rank = {i: position for position, i in enumerate(order, start=1)}
        gains = 2.0**y - 1
        best = sum(gain / discount(k) for k, gain in enumerate(sorted(gains, reverse=True), start=1))
        total = 0.0
        for i in n:
            for j in n:
                if y[i] <= y[j]:
                    continue
                rho = abs(1 / discount(rank[i]) - 1 / discount(rank[j]))
                apart = abs(rank[i] - rank[j])
                delta = abs(1 / discount(apart) - 1 / discount(apart + 1))
                worth = abs(gains[i] - gains[j]) / best
                total -= math.log2((1 / (1 + math.exp(-(s[i] - s[j])))) ** ((rho + mu * delta) * worth))
        expected.append(total)
    agrees(lambdaloss(scores, labels, mu=mu), expected)


def test_lambdaloss_of_large_labels():
    scores = torch.tensor([[0.0, 1.0, 2.0]])
    losses = lambdaloss(scores, torch.tensor([[200.0, 199.0, 0.0]]))
    assert losses.isfinite().all()
    agrees(losses, lambdaloss(scores, torch.tensor([[100.0, 99.0, 0.0]])))


@pytest.mark.parametrize("scale", [1e-9, 1e-20, 1e-30])
def test_lambdaloss_of_small_labels(scale):
    """2^l - 1 is l ln 2 for a small l: the gains, of which only ratios count, are the labels."""
    scores, labels = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[4.0, 1.0, 0.0]])
    agrees(lambdaloss(scores, scale * labels), lambdaloss(scores, 1e-4 * labels))


@pytest.mark.parametrize("name", sorted(LABEL_LOSSES))
def test_an_example_without_candidates_adds_nothing(name):
    scores = torch.tensor([[0.5, -0.5, ABSENT], [ABSENT] * 3], requires_grad=True)
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0] * 3])
    losses = LABEL_LOSSES[name](scores, labels)
    assert losses[1] == 0
    agrees(losses[:1], LABEL_LOSSES[name](scores[:1], labels[:1]).detach())
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[scores == ABSENT] == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(EVERY)), batches(grades=(0, 1)))
def test_gradients_are_finite_and_leave_out_padding(name, batch):
    scores, labels = batch
    losses = EVERY[name](scores, labels)
    assert losses.shape == (len(scores),)
    assert (losses >= -1e-6).all()
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[scores == ABSENT] == 0).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_damaged_score_is_no_padding(name):
    scores = torch.tensor([[math.nan, 1.0, 0.0]])
    assert EVERY[name](scores, torch.tensor([[0.0, 1.0, 0.0]])).isnan().all()


def test_pairs_cost_n_for_each_right_candidate():
    pairs = make_pairs(torch.zeros(3, 50), torch.eye(50)[:3])
    assert pairs.differences.shape == (3, 1, 50)
    assert pairs.ordered.sum() == 3 * 49
