"""Fitting a calibration to scores whose true probabilities are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from polyencoder.calibration import DEPTH, Calibration, fitting
from polyencoder.calibration.fitting import Observations, fit, measure_reliability
from polyencoder.errors import InputError
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

SPREAD = 2.0


def known(
    n: int, *, among: int, temperature: float = 1.0, shift: float = 0.0, answerable: float = 1.0, seed: int = 0
) -> Observations:
    """Scores of wrong candidates are normal; those of right ones likewise, and SPREAD^2 higher.

    So the score less SPREAD^2 / 2 is the logarithm of how much likelier a candidate is the right one for having it, and
    by Bayes' rule the formula of `polyencoder.calibration` is the truth: with this temperature, and with the "none" of
    `true_none`. All candidates are in the width of the observations, if `among` is at most DEPTH.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = SPREAD * torch.randn(n, among, generator=generator, dtype=torch.float64)
    is_answerable = torch.rand(n, generator=generator) < answerable
    scores[:, 0] += SPREAD**2 * is_answerable
    best, order = scores.sort(1, descending=True)
    right = (order == 0) & is_answerable.unsqueeze(1)
    best = best[:, : DEPTH + 1] * temperature + shift
    return Observations(best, right[:, : DEPTH + 1], torch.full((n,), among), DEPTH)


def true_none(*, temperature: float, shift: float, unanswerable: float) -> float:
    return SPREAD**2 / 2 + math.log(unanswerable / (1 - unanswerable)) + shift / temperature


def first(calibration: Calibration, seen: Observations) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = calibration.probabilities(seen.scores.numpy(), among=seen.among.numpy())
    return torch.from_numpy(probabilities[:, 0]), seen.right[:, 0]


@mostly_long(
    ("temperature", "shift", "unanswerable"), [(1.0, 0.0, 0.5), (25.0, 300.0, 0.2), (0.02, -1.0, 0.7)], quick=1
)
def test_the_truth_is_found(temperature, shift, unanswerable):
    settings = {"among": 8, "temperature": temperature, "shift": shift}
    result = fit(known(6000, **settings), fingerprint="x", unanswerable=unanswerable)
    assert result.calibration.temperature == pytest.approx(temperature, rel=0.06)
    expected = true_none(temperature=temperature, shift=shift, unanswerable=unanswerable)
    assert result.calibration.none == pytest.approx(expected, abs=0.1 + 0.06 * abs(shift) / temperature)
    p, right = first(result.calibration, known(6000, answerable=1 - unanswerable, seed=1, **settings))
    assert measure_reliability(p, right, torch.ones(len(p))).error < 0.025
    assert result.after.error < 0.025
    assert result.after.error < result.before.error
    assert result.after.brier < result.before.brier


@pytest.mark.long
def test_it_holds_among_more_candidates():
    """The weight of "none" grows with the number of candidates: without that it would be far off."""
    calibration = fit(known(6000, among=10), fingerprint="x").calibration
    many = known(3000, among=2000, answerable=0.5, seed=1)
    p, right = first(calibration, many)
    weights = torch.ones(len(p))
    assert measure_reliability(p, right, weights).error < 0.05
    as_if_ten, _ = first(calibration, Observations(many.scores, many.right, torch.full_like(many.among, 10)))
    assert measure_reliability(as_if_ten, right, weights).error > 0.2


@mostly_long("depth", [DEPTH, 3], quick=1)  # of searches, which see the best scores only
def test_promises_are_held_on_new_examples_as_often_as_they_say(depth):
    risks, broken, promised = (0.3, 0.45), 0, 0
    for seed in range(40):
        seen = replace(known(400, among=8, seed=2 * seed), depth=depth)
        new = replace(known(4000, among=8, answerable=0.5, seed=2 * seed + 1), depth=depth)
        calibration = fit(seen, fingerprint="x", risks=risks, confidence=0.9, seed=seed).calibration
        p, right = fitting._compute_first_probabilities(calibration, new), new.right[:, 0]
        for promise in calibration.promises:
            answered = p >= promise.threshold
            promised += 1
            broken += (~right[answered]).double().mean().item() > promise.risk
            assert promise.answered == pytest.approx(answered.double().mean().item(), abs=0.15)
    assert promised > 50
    assert broken <= 0.1 * promised + 3 * (0.1 * 0.9 * promised) ** 0.5


def test_promises_in_the_order_of_risks_and_the_smallest_possible_one():
    seen = known(1000, among=8)
    result = fit(seen, fingerprint="x", risks=(0.5, 0.3))
    loose, strict = result.calibration.promises
    assert (loose.risk, strict.risk) == (0.5, 0.3)
    assert loose.threshold < strict.threshold
    assert loose.answered > strict.answered
    smallest = result.least_risk
    again = fit(seen, fingerprint="x", risks=(smallest, smallest - 1e-6))
    assert [promise.risk for promise in again.calibration.promises] == [smallest]
    assert fit(seen, fingerprint="x").least_risk is None


def test_a_risk_that_cannot_be_promised():
    seen = known(200, among=8)
    hopeless = replace(seen, right=seen.right & (torch.arange(200) % 2 == 0).unsqueeze(1))
    result = fit(hopeless, fingerprint="x", risks=(0.05,))
    assert result.calibration.promises == ()
    assert result.least_risk > 0.05


def test_a_risk_that_needs_more_examples_says_how_many():
    with pytest.raises(InputError, match=r"at least 118 examples.* there are 100: .* 0.058") as error:
        fit(known(100, among=8), fingerprint="x", risks=(0.05,))
    assert error.value.argument == "risk"
    assert fit(known(100, among=8), fingerprint="x", risks=(0.059,)).least_risk > 0


@pytest.mark.parametrize("unanswerable", [0.01, 0.5])
def test_a_model_that_is_never_wrong(unanswerable):
    """The likelihood has no maximum there; the fit is finite all the same, and sure."""
    scores = torch.cat([torch.full((40, 1), 9.0), torch.zeros(40, 4)], 1).double()
    result = fit(Observations(scores, scores == 9, torch.full((40,), 5)), fingerprint="x", unanswerable=unanswerable)
    sure, unsure = result.calibration.probabilities(np.array([[9.0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]), among=5)[:, 0]
    assert sure > 0.9
    assert unsure < 0.2


@pytest.mark.parametrize(("n", "step"), [(400, 0.1), (12, 0.02)])
def test_the_fit_is_a_maximum(n, step):
    """Against a likelihood written down by hand, with normal priors of the parameters of standardised scores."""
    seen = known(n, among=5, temperature=3.0)
    both = {0.7: seen, 0.3: seen.remove_right()}
    scores = [score for part in both.values() for row in part.scores.tolist() for score in row if score > -math.inf]
    mean, deviation = np.mean(scores), np.std(scores, ddof=1)

    def posterior(slope: float, none: float) -> float:
        total = -((slope * deviation) ** 2 + (none - slope * mean) ** 2) / 2
        for share, part in both.items():
            for scores, right, among in zip(
                part.scores.tolist(), part.right.tolist(), part.among.tolist(), strict=True
            ):
                weights = [math.exp(score * slope) for score in scores]
                weights.append(among * math.exp(none))
                picked = right.index(True) if True in right else -1  # the last is "none"
                total += share * math.log(weights[picked] / sum(weights))
        return total

    calibration = fit(seen, fingerprint="x", unanswerable=0.3).calibration
    slope, none = 1 / calibration.temperature, calibration.none
    best = posterior(slope, none)
    for d in (-step, step):
        assert posterior(slope * (1 + d), none) < best
        assert posterior(slope, none + d) < best


def test_without_the_right_one():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, -torch.inf]], dtype=torch.float64)
    right = torch.tensor([[False, True, False], [False, False, False]])
    seen = Observations(scores, right, torch.tensor([9, 2])).remove_right()
    assert seen.scores.tolist() == [[3.0, 1.0, -torch.inf], [3.0, 2.0, -torch.inf]]
    assert not seen.right.any()
    assert seen.among.tolist() == [8, 2]


def test_reliability_by_hand():
    p = torch.tensor([0.9, 0.1, 0.9, 0.1])
    right = torch.tensor([True, False, False, False])
    reliability = measure_reliability(p, right, torch.tensor([3.0, 1.0, 1.0, 3.0]))
    assert sum(bin_.share for bin_ in reliability.bins) == pytest.approx(1)
    assert reliability.brier == pytest.approx((3 * 0.01 + 0.01 + 0.81 + 3 * 0.01) / 8)
    perfect = measure_reliability(torch.tensor([0.0, 1.0]), torch.tensor([False, True]), torch.ones(2))
    assert (perfect.error, perfect.brier) == (0.0, 0.0)


def test_reliability_has_ten_bins_of_equal_weight():
    """Against numpy, for examples of equal weight."""
    p = torch.rand(200, dtype=torch.float64)
    right = torch.rand(200) < p**2
    reliability = measure_reliability(p, right, torch.ones(200))
    order = np.argsort(p.numpy())
    bins = np.array_split(p.numpy()[order], 10), np.array_split(right.numpy()[order].astype(float), 10)
    assert [bin_.share for bin_ in reliability.bins] == pytest.approx([0.1] * 10)
    assert [bin_.probability for bin_ in reliability.bins] == pytest.approx([part.mean() for part in bins[0]])
    assert [bin_.right for bin_ in reliability.bins] == pytest.approx([part.mean() for part in bins[1]])
    expected = np.mean([abs(chances.mean() - answers.mean()) for chances, answers in zip(*bins, strict=True)])
    assert reliability.error == pytest.approx(expected)
    assert reliability.brier == pytest.approx(((p - right.double()) ** 2).mean().item())


def test_the_reliability_is_that_of_examples_that_a_fit_has_not_seen(monkeypatch):
    """Five fits to four fifths each leave out every example once; the sixth is to all."""
    seen, fits = known(50, among=4), []

    def spied(observations, **settings):
        fits.append({*observations.scores[:, 0].tolist()})
        return fitted(observations, **settings)

    fitted = fitting._fit_scaled
    monkeypatch.setattr(fitting, "_fit_scaled", spied)
    fit(seen, fingerprint="x")
    everything = {*seen.scores[:, 0].tolist()}
    assert [len(fit_scores) for fit_scores in fits] == [40] * 5 + [50]
    assert sorted(score for fit_scores in fits for score in everything - fit_scores) == sorted(everything)


def test_what_cannot_be_fitted():
    seen = known(20, among=4)
    with pytest.raises(InputError, match="9 examples are too few"):
        fit(seen.select(torch.arange(9)), fingerprint="x")
    with pytest.raises(InputError, match="unanswerable is 1.0; it must be between 0 and 1"):
        fit(seen, fingerprint="x", unanswerable=1.0)
    for risk in (0, 1, 90, math.nan):
        with pytest.raises(InputError, match="risk is .*; it must be between 0 and 1"):
            fit(seen, fingerprint="x", risks=(risk,))
    with pytest.raises(InputError, match="confidence is 1; it must be between 0 and 1"):
        fit(seen, fingerprint="x", risks=(0.1,), confidence=1)
    alone = Observations(seen.scores[:, :1], torch.ones(20, 1, dtype=torch.bool), torch.ones(20))
    with pytest.raises(InputError, match="each example has a single candidate"):
        fit(alone, fingerprint="x")
    with pytest.raises(InputError, match="all scores are equal"):
        fit(Observations(torch.zeros(20, 4).double(), seen.right, seen.among), fingerprint="x")
    last = Observations(seen.scores, (torch.arange(4) == 3).expand(20, 4).clone(), seen.among)
    with pytest.raises(InputError, match="the right answer comes first in 0 of 20 examples: too few to tell"):
        fit(last, fingerprint="x")
    last.right[0] = torch.arange(4) == 0
    every_second = (torch.arange(2) == torch.arange(20).unsqueeze(1) % 2, torch.full((20,), 2))
    even = Observations(torch.tensor([[1.0, -1.0]]).double().expand(20, 2), *every_second)
    for seen in (last, even):
        with pytest.raises(InputError, match="no better than chance"):
            fit(seen, fingerprint="x")


def test_a_row_of_one_candidate_has_a_probability_before_the_fit():
    """Without its right candidate there is none to choose: the answer is wrong, and as good as impossible."""
    seen = known(200, among=4)
    seen.scores[0, 1:] = -torch.inf
    seen.right[0], seen.among[0] = torch.arange(4) == 0, 1
    result = fit(seen, fingerprint="x")
    assert all(math.isfinite(number) for number in (result.before.error, result.before.brier, result.after.error))
    assert sum(bin_.share for bin_ in result.before.bins) == pytest.approx(1)
