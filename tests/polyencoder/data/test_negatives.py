"""Sampled candidates: distinct, never right by chance, the same for equal seeds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.errors import ConfigError, InputError

POOL = [f"reply number {n} ." for n in range(200)]


@given(st.text(max_size=8), st.integers(1, 40))
def test_candidates_are_the_label_and_distinct_others(key, count):
    candidates = NegativeSampler(POOL, count=count).draw_candidates([POOL[7]], key=key)
    assert len(candidates) == len(set(candidates)) == count + 1
    assert candidates.count(POOL[7]) == 1
    assert set(candidates) <= set(POOL)


def test_what_scores_as_right_is_no_negative():
    """ParlAI's hits@k sets case, punctuation and articles aside, so such variants of the label would count as hits."""
    pool = ["i have a dog .", "I have the dog!", "i have dog", "yes .", "Yes", "no ."]
    candidates = NegativeSampler(pool, count=2).draw_candidates(["i have a dog ."], key="k")
    assert len(candidates) == 3
    assert {text.lower().strip(" .") for text in candidates} == {"i have a dog", "yes", "no"}


def test_all_labels_of_an_example_are_avoided():
    sampler = NegativeSampler(["a1", "b1", "c1", "d1"], count=2)
    for key in "0123456789":
        assert set(sampler.draw_candidates(["a1", "b1"], key=key)) == {"a1", "c1", "d1"}


def test_equal_seed_and_key_give_equal_candidates():
    first, again, other = (NegativeSampler(POOL, seed=seed) for seed in (3, 3, 4))
    assert first.draw_candidates(["x"], key="k") == again.draw_candidates(["x"], key="k")
    assert first.draw_candidates(["x"], key="k") != first.draw_candidates(["x"], key="l")
    assert first.draw_candidates(["x"], key="k") != other.draw_candidates(["x"], key="k")


def test_without_key_each_call_draws_anew_in_a_fixed_sequence():
    first, again = NegativeSampler(POOL), NegativeSampler(POOL)
    draws = [first.draw_candidates(["x"]) for _ in range(3)]
    assert draws == [again.draw_candidates(["x"]) for _ in range(3)]
    assert draws[0] != draws[1] != draws[2]


def test_label_stands_anywhere():
    counts = Counter(NegativeSampler(POOL, count=4).draw_candidates(["x"], key=str(n)).index("x") for n in range(1000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert min(counts.values()) > 140  # 200 expected, standard deviation 13


def test_frequent_labels_are_not_favoured():
    sampler = NegativeSampler(["often"] * 1000 + POOL[:9], count=1)
    drawn = Counter(text for n in range(1000) for text in sampler.draw_candidates(["x"], key=str(n)))
    assert drawn["often"] < 180  # 100 expected, standard deviation 9.5


def test_too_few_labels():
    with pytest.raises(InputError, match="num_negatives is 19, but train.txt has only 2 labels .* lower it"):
        NegativeSampler(["a1", "b1", "c1"], source="train.txt").draw_candidates(["a1"], key="k")
    with pytest.raises(InputError, match="train.txt: has no label that differs from 'yes': there is nothing to rank"):
        NegativeSampler(["yes", "Yes."], source="train.txt").draw_candidates(["yes"], key="k")


def test_count_must_be_positive():
    with pytest.raises(ConfigError, match="num_negatives is 0; it must be at least 1"):
        NegativeSampler(POOL, count=0)


def test_all_right_texts_of_an_example_are_candidates():
    sampler = NegativeSampler(["a1", "b1", "c1", "d1"], count=2)
    example = Example(["hi"], "b1", labels={"b1": 2, "a1": 1})
    completed = sampler.complete(example, key="k")
    assert sorted(completed.candidates) == ["a1", "b1", "c1", "d1"]
    assert completed.labels == example.labels
    with pytest.raises(InputError, match="num_negatives is 3, but the data has only 2 labels that differ from 'b1'"):
        NegativeSampler(["a1", "b1", "c1", "d1"], count=3).complete(example)
