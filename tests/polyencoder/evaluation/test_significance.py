"""Intervals and p values against scipy's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from polyencoder.evaluation.significance import (
    compute_bootstrap_intervals,
    compute_standard_error,
    run_randomisation_test,
)

RNG = np.random.default_rng(5)
VALUES = np.stack([RNG.random(60), RNG.integers(0, 2, 60).astype(float)], axis=1)


def test_intervals_of_each_measure_are_scipys():
    ours = compute_bootstrap_intervals(VALUES, samples=20_000, seed=1)
    for column, (low, high) in enumerate(ours):
        sample = (VALUES[:, column],)
        theirs = stats.bootstrap(sample, np.mean, n_resamples=20_000, method="percentile", random_state=1)
        np.testing.assert_allclose((low, high), theirs.confidence_interval, rtol=1e-12)
        assert low < VALUES[:, column].mean() < high


@pytest.mark.parametrize(("share", "count"), [(0.0, 3), (1.0, 3), (0.5, 10), (0.9, 100)])
def test_standard_error_of_a_share(share, count):
    """Four standard errors are about as wide as Clopper and Pearson's interval of 95 %."""
    error = compute_standard_error(share, count)
    low, high = stats.binomtest(round(share * count), count).proportion_ci(method="exact", confidence_level=0.95)
    assert 0.8 * (high - low) < 4 * error < 1.1 * (high - low)


def test_intervals_of_few_and_of_equal_values():
    assert compute_bootstrap_intervals(np.full((7, 1), 0.25)).tolist() == [[0.25, 0.25]]
    assert compute_bootstrap_intervals(np.array([[0.5, 1.0]])).tolist() == [[0.5, 0.5], [1.0, 1.0]]
    np.testing.assert_array_equal(
        compute_bootstrap_intervals(VALUES, seed=3), compute_bootstrap_intervals(VALUES, seed=3)
    )


def test_p_values_are_those_of_all_exchanges():
    """All 1,024 exchanges of ten queries can be counted, and scipy counts them too."""
    first, second = RNG.random((10, 2)), RNG.random((10, 2)) * 0.8
    differences = first - second
    signs = np.array(list(itertools.product([-1, 1], repeat=10)))
    observed = np.abs(differences.sum(axis=0))
    exact = (np.abs(signs @ differences) >= observed * (1 - 1e-9)).mean(axis=0)
    ours = run_randomisation_test(first, second, samples=40_000)
    np.testing.assert_allclose(ours, exact, atol=0.01)
    theirs = stats.permutation_test(
        (first[:, 0], second[:, 0]), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=2000
    )
    np.testing.assert_allclose(exact[0], theirs.pvalue, atol=1e-9)


def test_p_values_at_their_ends():
    assert run_randomisation_test(VALUES, VALUES).tolist() == [1.0, 1.0]
    assert run_randomisation_test(VALUES + 1, VALUES, samples=999).tolist() == [1 / 1000, 1 / 1000]
    np.testing.assert_array_equal(
        run_randomisation_test(VALUES[::-1], VALUES), run_randomisation_test(VALUES, VALUES[::-1])
    )
