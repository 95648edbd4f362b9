"""Texts between which a model cannot tell are one candidate."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.pool import fixed_pool, inline_pool, shared_pool, without_twins

TEXTS = st.sampled_from([letter + end for letter in "abc" for end in ("", ".", "!")])
BATCHES = st.lists(st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=5)


def keys(texts):
    return [text[0] for text in texts]


def offered(pool, row):
    """The keys of what this example may choose, and of its label, through the tensors alone."""
    index = torch.arange(len(pool.texts)) if pool.index is None else pool.index[row]
    mask = torch.ones(len(index), dtype=torch.bool) if pool.mask is None else pool.mask[row]
    found = [pool.texts[place] for place, there in zip(index.tolist(), mask.tolist(), strict=True) if there]
    return keys(found), pool.texts[index[pool.labels[row]]][0]


@given(BATCHES)
def test_inline_candidates(candidates):
    labels = [texts[-1] for texts in candidates]
    pool = inline_pool(candidates, labels)
    merged = without_twins(pool, keys(pool.texts))
    assert len(set(keys(merged.texts))) == len(merged.texts)
    for row, (texts, label) in enumerate(zip(candidates, labels, strict=True)):
        assert offered(merged, row) == (list(dict.fromkeys(keys(texts))), label[0])
        assert keys(merged.candidates(row)) == list(dict.fromkeys(keys(texts)))
    assert merged.given == pool.given


@given(st.lists(TEXTS, min_size=1, max_size=8), st.lists(TEXTS, min_size=1, max_size=4, unique=True))
def test_labels_of_a_batch_and_fixed_candidates(labels, fixed):
    shared = shared_pool(labels, labels)
    beside = fixed_pool(fixed, {text: i for i, text in enumerate(fixed)}, labels, add=True)
    for pool, others in ((shared, labels), (beside, fixed)):
        merged = without_twins(pool, keys(pool.texts))
        assert keys(merged.texts) == list(dict.fromkeys(keys(pool.texts)))
        for row, label in enumerate(labels):
            choices, right = offered(merged, row)
            assert right == label[0]
            assert sorted(choices) == sorted({*keys(others), label[0]})


def test_a_pool_of_different_texts_stays_itself():
    pool = shared_pool(["a", "b"], ["b", "a"])
    assert without_twins(pool, keys(pool.texts)) is pool
    assert without_twins(shared_pool(["a", "a."], None), ["a", "a"]).texts == ["a"]
