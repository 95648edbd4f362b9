"""Texts between which a model cannot tell are one candidate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.example import Example
from polyencoder.data.pool import build_batch_pool, build_fixed_pool, build_inline_pool, build_shared_pool, merge_equal
from polyencoder.errors import InputError

pytestmark = pytest.mark.slow

TEXTS = st.sampled_from([letter + end for letter in "abc" for end in ("", ".", "!")])
BATCHES = st.lists(st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=5)


def keys(texts):
    return [text[0] for text in texts]


def offered(pool, row):
    """The keys of what this example may choose, and of its label, through the tensors alone."""
    index = torch.arange(len(pool.texts)) if pool.index is None else pool.index[row]
    mask = torch.ones(len(index), dtype=torch.bool) if pool.mask is None else pool.mask[row]
    texts = [pool.texts[column] for column, is_real in zip(index.tolist(), mask.tolist(), strict=True) if is_real]
    return keys(texts), pool.texts[index[pool.labels[row]]][0]


@given(BATCHES)
def test_inline_candidates(candidates):
    labels = [texts[-1] for texts in candidates]
    pool = build_inline_pool(candidates, labels)
    merged = merge_equal(pool, keys(pool.texts))
    assert len(set(keys(merged.texts))) == len(merged.texts)
    for row, (texts, label) in enumerate(zip(candidates, labels, strict=True)):
        assert offered(merged, row) == (list(dict.fromkeys(keys(texts))), label[0])
        assert keys(merged.list_candidates(row)) == list(dict.fromkeys(keys(texts)))
    assert merged.sizes == pool.sizes


@given(st.lists(TEXTS, min_size=1, max_size=8), st.lists(TEXTS, min_size=1, max_size=4, unique=True))
def test_labels_of_a_batch_and_fixed_candidates(labels, fixed):
    shared = build_shared_pool(labels, labels)
    beside = build_fixed_pool(fixed, {text: i for i, text in enumerate(fixed)}, labels, add=True)
    for pool, others in ((shared, labels), (beside, fixed)):
        merged = merge_equal(pool, keys(pool.texts))
        assert keys(merged.texts) == list(dict.fromkeys(keys(pool.texts)))
        for row, label in enumerate(labels):
            choices, right = offered(merged, row)
            assert right == label[0]
            assert sorted(choices) == sorted({*keys(others), label[0]})


def test_a_pool_of_different_texts_stays_itself():
    pool = build_shared_pool(["a", "b"], ["b", "a"])
    assert merge_equal(pool, keys(pool.texts)) is pool
    assert merge_equal(build_shared_pool(["a", "a."], None), ["a", "a"]).texts == ["a"]


FIXED = ("x", "y"), {"x": 0, "y": 1}


def test_the_pool_of_each_source():
    texts = {"labels": ["b", "a"], "candidates": [["b", "c"], ["a", "b", "a"]]}
    assert list(build_batch_pool("batch", **texts).texts) == ["b", "a"]
    assert list(build_batch_pool("batch-all-cands", **texts).texts) == ["b", "c", "a"]
    inline = build_batch_pool("inline", **texts)
    assert [inline.list_candidates(row) for row in (0, 1)] == [["b", "c"], ["a", "b"]]
    assert inline.count_candidates(2) == [2, 3]  # as the data says it: one twice
    fixed = build_fixed_pool(*FIXED, texts["labels"], add=True)
    assert list(fixed.texts) == ["x", "y", "b", "a"]
    assert fixed.mask.tolist() == [[True, True, True, False], [True, True, False, True]]
    assert fixed.count_candidates(2) == [3, 3]
    assert build_batch_pool("batch-all-cands", **texts).count_candidates(2) == [3, 3]
    for source in ("batch", "batch-all-cands", "inline"):
        with pytest.raises(InputError, match=f"candidates from '{source}' are not supported"):
            build_batch_pool(source, labels=None, candidates=None)


def test_who_has_a_choice():
    assert build_inline_pool([["a"]], None).labels is None
    assert [build_inline_pool(lists, None).has_negatives for lists in ([["a"], ["b"]], [["a"], ["a", "b"]])] == [
        False,
        True,
    ]
    assert [build_shared_pool(texts, None).has_negatives for texts in (["a", "a"], ["a", "b"])] == [False, True]


def test_a_label_outside_the_fixed_candidates_is_an_error_unless_it_is_added():
    assert build_fixed_pool(*FIXED, ["y"], add=False).labels.tolist() == [1]
    with pytest.raises(InputError, match="label 'z' is not among the 2 fixed candidates") as raised:
        build_fixed_pool(*FIXED, ["y", "z"], add=False)
    assert raised.value.argument == "add_label"


@st.composite
def judged(draw):
    """(candidates, labels) of a few examples: some candidates are right, by numbers; the label is the best of them."""
    candidates = draw(BATCHES)
    numbers = [{text: float(draw(st.integers(1, 3))) for text in texts[::2]} for texts in candidates]
    return candidates, [max(labels_of, key=labels_of.get) for labels_of in numbers], numbers


@given(judged(), st.sampled_from(["batch", "inline", "batch-all-cands"]), st.booleans())
def test_each_candidate_keeps_its_label_as_a_number(batch, source, merge):
    """Texts that a model cannot tell apart have the best label; a text of another example has 0."""
    candidates, labels, numbers = batch
    pool = build_batch_pool(source, labels=labels, candidates=candidates, relevance=numbers)
    if merge:
        pool = merge_equal(pool, keys(pool.texts))
    for row, relevance in enumerate(numbers):
        texts, row_numbers = pool.list_candidates(row), pool.numbers[row].tolist()
        for text, number in zip(texts, row_numbers, strict=False):
            twins = [value for other, value in relevance.items() if (other[0] == text[0] if merge else other == text)]
            assert number == max(twins, default=0)
        assert set(row_numbers[len(texts) :]) <= {0.0}
        assert row_numbers[pool.labels[row]] == max(relevance.values())
        assert {text[0] for text in pool.list_right()[row]} == {text[0] for text in relevance}


def test_one_right_candidate_is_the_usual_pool():
    usual = build_batch_pool("inline", labels=["a", "c"], candidates=[["a", "b"], ["b", "c"]])
    assert usual.relevance is None
    assert usual.numbers.tolist() == [[1, 0], [0, 1]]
    graded = [Example.graded(["hi"], texts, labels) for texts, labels in ((["a", "b"], [1, 0]), (["b", "c"], [0, 1]))]
    pool = build_batch_pool(
        "inline",
        labels=[example.label for example in graded],
        candidates=[example.choices for example in graded],
        relevance=[example.labels for example in graded],
    )
    assert pool.relevance is None
    assert usual.list_right() == pool.list_right() == [["a"], ["c"]]


def test_negatives_are_wrong_but_for_whom_they_are_right():
    pool = build_batch_pool("batch", labels=["a", "c"], candidates=None, relevance=[{"a": 1, "b": 2}, None])
    wider = pool.add_negatives([["x", "b"], ["y", "x"]])
    assert list(wider.texts) == ["a", "b", "c", "x", "y"]
    assert wider.numbers.tolist() == [[1, 2, 0, 0, 0], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize("relevance", [None, [{"a": 1, "b": 2}, None]])
def test_negatives_join_the_candidates_of_their_example_where_each_has_its_own(relevance):
    pool = build_batch_pool("inline", labels=["a", "c"], candidates=[["b", "a"], ["c"]], relevance=relevance)
    wider = pool.add_negatives([["x", "b"], ["y", "a", "x"]])
    assert wider.lists == [["b", "a", "x"], ["c", "y", "a", "x"]]
    assert wider.labels.tolist() == pool.labels.tolist() == [1, 0]
    assert wider.numbers.tolist() == [[2, 1, 0, 0] if relevance else [0, 1, 0, 0], [1, 0, 0, 0]]
    assert wider.mask.tolist() == [[True, True, True, False], [True] * 4]
    texts = [[wider.texts[column] for column in row if column >= 0] for row in wider.index.tolist()]
    assert texts == wider.lists
