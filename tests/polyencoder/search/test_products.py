from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.search.contexts import Contexts
from polyencoder.search.products import Queries
from polyencoder.search.rows import Block


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([1, 7, 64, 384]),
    codes=st.integers(1, 5),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e12]),
    masked=st.booleans(),
)
def test_a_product_is_within_its_radius(seed, dim, codes, size, masked):
    random = np.random.default_rng(seed)
    rows = (random.normal(size=(20, dim)) * 10.0 ** random.integers(-6, 6, (20, 1))).astype(np.float32)
    contexts = Contexts(size * random.normal(size=(3, codes, dim)), random.random((3, codes)) < 0.6 if masked else None)
    queries = Queries(contexts)
    look = queries.look(Block(0, rows))
    exact = np.einsum("nd,bmd->nbm", rows.astype(np.float64), queries.exact)
    places, of = np.divmod(np.arange(60), 3)
    logits, radius = look.logits(places, of)
    assert (np.abs(logits - exact[places, of]) <= radius[:, None]).all()
    np.testing.assert_array_equal(look.most()[places, of], logits.max(axis=1).astype(np.float32))
    real = np.ones((3, codes), bool) if contexts.mask is None else contexts.mask
    np.testing.assert_array_equal(queries.exact[real], contexts.vectors[real])
    assert (queries.exact[~real.any(axis=1)] == 0).all()
