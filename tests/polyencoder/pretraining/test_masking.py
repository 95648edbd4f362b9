"""The mask: its rates, that special tokens are left alone, that nothing masked leaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import ConfigError
from polyencoder.pretraining.masking import IGNORED, Masking

pytestmark = pytest.mark.slow

MASK, SPECIAL, SIZE = 3, [0, 1, 2, 3], 1_000
masking = Masking(MASK, SPECIAL, SIZE)


def test_the_rates_are_those_of_bert():
    rng = np.random.default_rng(0)
    ids = rng.integers(4, SIZE, 100)
    chosen = masked = unchanged = total = 0
    where = np.zeros(100)
    for _ in range(4_000):
        seen, targets = masking(ids, rng)
        is_target = targets != IGNORED
        where += is_target
        chosen += is_target.sum()
        masked += (seen[is_target] == MASK).sum()
        unchanged += (seen[is_target] == ids[is_target]).sum()
        total += len(ids)
        assert (seen[~is_target] == ids[~is_target]).all()
        assert (targets[is_target] == ids[is_target]).all()
    assert chosen == 0.15 * total  # exactly
    assert masked / chosen == pytest.approx(0.8, abs=0.01)
    assert unchanged / chosen == pytest.approx(0.1 + 0.1 / (SIZE - 4), abs=0.01)
    assert 0.12 < where.min() / 4_000 < where.max() / 4_000 < 0.18  # every place alike


@given(
    ids=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=40),
    probability=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_special_tokens_are_neither_chosen_nor_put_in(ids, probability, seed):
    seen, targets = Masking(MASK, SPECIAL, SIZE, probability)(ids, np.random.default_rng(seed))
    ids = np.asarray(ids)
    ordinary = ~np.isin(ids, SPECIAL)
    assert (targets[~ordinary] == IGNORED).all()
    assert (seen[~ordinary] == ids[~ordinary]).all()
    changed = seen[seen != ids]
    assert np.isin(changed, [MASK]).sum() + (changed > 3).sum() == len(changed)
    count = int((targets != IGNORED).sum())
    assert count == (max(1, round(ordinary.sum() * probability)) if ordinary.any() else 0)


def test_equal_draws_are_equal_and_others_differ():
    ids = list(range(4, 104))
    first, again, other = (masking(ids, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (first[0] == again[0]).all()
    assert (first[1] != other[1]).any()


def test_what_cannot_be_is_an_error():
    with pytest.raises(ConfigError, match="only special tokens"):
        Masking(MASK, SPECIAL, 4)
