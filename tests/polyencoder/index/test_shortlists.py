"""Shortlists and groups of codes: each code is near to the first of its group, and codes that are apart stay apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.index import shortlists


def group_means(codes, **settings):
    means = shortlists.compute_group_means(codes.numpy(), **settings)
    assert means.dtype == np.float32
    return torch.from_numpy(means)


def as_set(vectors):
    return {tuple(row) for row in vectors.round(decimals=4).tolist()}


def test_rounding_of_products_that_vanish():
    nearest = lambda queries: shortlists.Lists([np.array([0])], np.zeros(1))  # noqa: E731
    ((_, bound),) = shortlists.iter_shortlists(
        [np.full((1, 8), 1e-23, np.float32)], nearest, grouped=False, max_norm=1e-23
    )
    assert bound >= 8 * 2**-126


def test_rounding_of_codes_whose_squares_vanish():
    codes = [np.full((1, 8), 1e-25, np.float32)]
    nearest = lambda queries: shortlists.Lists([np.array([0])], np.zeros(1))  # noqa: E731
    ((_, bound),) = shortlists.iter_shortlists(codes, nearest, grouped=False, max_norm=1e25)
    assert bound > 8**0.5 * 2**-24


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 4), st.floats(0.05, 1.5))
def test_every_code_is_near_to_a_mean_and_no_mean_is_needless(seed, codes, clusters, tolerance):
    torch.manual_seed(seed)
    vectors = torch.randn(clusters, 6)[torch.randint(clusters, (codes,))] + 0.1 * torch.randn(codes, 6)
    means = group_means(vectors, tolerance=tolerance)
    assert 1 <= len(means) <= codes
    # a code and the mean of its group are both within the tolerance of the group's first code
    allowed = 2 * tolerance * vectors.norm(dim=1).mean()
    assert (torch.cdist(vectors, means).amin(dim=1) <= allowed + 1e-4).all()
    # weighted with the sizes of the groups, the means have the mean of all
    if len(means) == 1:
        torch.testing.assert_close(means[0], vectors.mean(dim=0))


def test_codes_that_are_alike_are_one_group():
    torch.manual_seed(0)
    two = 4 * torch.eye(5)[:2]
    codes = two.repeat_interleave(8, dim=0) + 0.05 * torch.randn(16, 5)
    means = group_means(codes)
    assert len(means) == 2
    expected = torch.stack([codes[:8].mean(dim=0), codes[8:].mean(dim=0)])
    assert as_set(means) == as_set(expected)


@pytest.mark.parametrize("codes", [1, 7])
def test_codes_that_are_apart_stay_as_they_are(codes):
    vectors = torch.eye(9)[:codes]
    assert as_set(group_means(vectors)) == as_set(vectors)


@pytest.mark.parametrize("tolerance", [0.0, 1e-5])
def test_many_codes_without_tolerance_stay_as_they_are(tolerance):
    """torch computes distances of so many codes by products: a code's distance from itself is not quite 0."""
    torch.manual_seed(0)
    vectors = torch.randn(64, 96)
    assert as_set(group_means(vectors, tolerance=tolerance)) == as_set(vectors)
    doubled = group_means(torch.cat([vectors, vectors]), tolerance=tolerance)
    assert as_set(doubled) == as_set(vectors)


def test_codes_of_zeros_are_one_group():
    assert group_means(torch.zeros(4, 3)).tolist() == [[0, 0, 0]]
