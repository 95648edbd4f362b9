from __future__ import annotations

import builtins

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.search import products
from polyencoder.search.contexts import Contexts
from polyencoder.search.products import Queries
from polyencoder.search.rows import Block, QuantizedRows


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([1, 7, 64, 384]),
    n_contexts=st.sampled_from([1, 3]),
    codes=st.integers(1, 5),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e12]),
    masked=st.booleans(),
    in_8_bits=st.booleans(),
    has_numkong=st.booleans(),
)
def test_a_product_is_within_its_radius(seed, dim, n_contexts, codes, size, masked, in_8_bits, has_numkong):
    random = np.random.default_rng(seed)
    rows = (random.normal(size=(20, dim)) * 10.0 ** random.integers(-6, 6, (20, 1))).astype(np.float32)
    mask = random.random((n_contexts, codes)) < 0.6 if masked else None
    contexts = Contexts(size * random.normal(size=(n_contexts, codes, dim)), mask)
    queries = Queries(contexts)
    with pytest.MonkeyPatch.context() as patch:
        if not has_numkong:
            patch.setattr(products, "import_numkong", lambda: None)
        integers = in_8_bits and n_contexts * codes > 1 and products.import_numkong()
        block = queries.multiply(Block(0, rows, QuantizedRows.from_vectors(rows) if in_8_bits else None))
    assert block.products.dtype == (np.int32 if integers else np.float32)
    exact = np.einsum("nd,bmd->nbm", rows.astype(np.float64), queries.exact)
    row_numbers, context_numbers = np.divmod(np.arange(20 * n_contexts), n_contexts)
    logits, radius = block.compute_logits(row_numbers, context_numbers)
    assert (np.abs(logits - exact[row_numbers, context_numbers]) <= radius[:, None]).all()
    largest = block.find_largest()[row_numbers, context_numbers]
    assert (np.abs(largest - exact[row_numbers, context_numbers].max(axis=1)) <= radius).all()
    real = np.ones((n_contexts, codes), bool) if contexts.mask is None else contexts.mask
    np.testing.assert_array_equal(queries.exact[real], contexts.vectors[real])
    assert (queries.exact[~real.any(axis=1)] == 0).all()


@pytest.mark.parametrize(("rows", "queries", "dim"), [(1, 1, 1), (100, 1, 384), (37, 64, 100), (1000, 1, 4096)])
def test_products_of_numkong_are_those_of_integers(rows, queries, dim):
    numkong, random = pytest.importorskip("numkong"), np.random.default_rng(0)
    left, right = (random.integers(-127, 128, (n, dim)).astype(np.int8) for n in (rows, queries))
    exact = left.astype(np.int32) @ right.astype(np.int32).T
    np.testing.assert_array_equal(numkong.dots_packed(left, numkong.dots_pack(right, "int8")), exact)
    np.testing.assert_array_equal(numkong.cdist(left, right, "dot", out_dtype="float32"), exact.astype(np.float32))


@pytest.fixture
def without_numkong(monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **options):
        if name == "numkong":
            raise ImportError("no wheel")
        return original(name, *args, **options)

    products.import_numkong.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    yield
    products.import_numkong.cache_clear()


def test_without_numkong_a_line_says_so(without_numkong, caplog):
    rows = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    for _ in range(2):
        block = Queries(Contexts(rows[:2, None])).multiply(Block(0, rows, QuantizedRows.from_vectors(rows)))
        assert block.products.dtype == np.float32
    assert [record.message for record in caplog.records] == [
        "numkong cannot be imported (no wheel): searches compute in float32, which takes longer"
    ]
