"""Lists of hits of several indexes as one: by score, each candidate once, and no surer than the least sure list."""

from __future__ import annotations

import pytest

from polyencoder.index.hits import Hit
from polyencoder.index.merging import best_of, in_first_parts

A, B, C = (Hit(name, f"text {name}", score, None, "exact") for name, score in (("a", 3.0), ("b", 2.0), ("c", 1.0)))


def test_the_best_of_all_and_equal_candidates_once():
    found = best_of([(1, [B, C], "exact"), (2, [A, B], "exact")], None, k=2)
    assert [(hit.id, hit.part, hit.missing) for hit in found] == [("a", 2, None), ("b", 1, None)]


def test_one_id_with_another_text_is_another_candidate():
    other = B._replace(text="another", score=5.0)
    found = best_of([(1, [B], "exact"), (3, [other], "exact")], (2,), k=5)
    assert [(hit.text, hit.part, hit.missing) for hit in found] == [("another", 3, (2,)), ("text b", 1, (2,))]


@pytest.mark.parametrize(
    ("ways", "weakest"),
    [
        (["exact", "certified"], "certified"),
        (["approximate", "certified"], "approximate"),
        (["exact", "exact"], "exact"),
    ],
)
def test_a_result_is_as_sure_as_the_least_sure_list(ways, weakest):
    found = best_of([(1, [A], ways[0]), (2, [], ways[1])], None, k=1)
    assert [hit.found for hit in found] == [weakest]


def test_words_order_by_their_scores():
    first, second = (hit._replace(found="words", word_score=words) for hit, words in ((A, 1.0), (B, 2.0)))
    assert [hit.id for hit in best_of([(1, [first], "words"), (2, [second], "words")], None, k=2)] == ["b", "a"]


def test_a_candidate_of_both_lists_is_in_one_part():
    vectors, words = in_first_parts([A._replace(part=2)], [A._replace(part=1), B._replace(part=2)])
    assert [hit.part for hit in vectors] == [1]
    assert [hit.part for hit in words] == [1, 2]
