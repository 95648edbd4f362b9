from __future__ import annotations

import pytest

from polyencoder.errors import InputError
from polyencoder.index.hits import Hit
from polyencoder.index.rerank import rerank

CONTEXTS = [["hello , how are you ?"], ["do you ski ?", "no , i have two dogs ."], "i am a teacher ."]


@pytest.fixture
def cross(make_ranker):
    return make_ranker("cross")


@pytest.fixture
def hits(sentences) -> list[list[Hit]]:
    """Eight of the first context, none of the second, three of the third."""
    rows = [Hit(str(i), text, 10.0 - i, {"n": i}, "exact") for i, text in enumerate(sentences)]
    return [rows, [], rows[4:1:-1]]


@pytest.mark.parametrize("k", [1, 3, 8, 100])
def test_the_first_k_are_ordered_by_the_cross_encoder_and_the_others_stay(cross, hits, k):
    """The reference scores one pair at a time."""
    for context, before, after in zip(CONTEXTS, hits, rerank(cross, CONTEXTS, hits, k=k), strict=True):
        scored = [hit._replace(rerank_score=cross.score([context], [hit.text]).item()) for hit in before[:k]]
        scored.sort(key=lambda hit: -hit.rerank_score)
        assert [hit.id for hit in after] == [hit.id for hit in [*scored, *before[k:]]]
        assert [hit.rerank_score for hit in after[:k]] == pytest.approx([hit.rerank_score for hit in scored], abs=1e-4)
        assert [hit._replace(rerank_score=None) for hit in after[k:]] == before[k:]
        assert all(before[int(hit.id)] == hit._replace(rerank_score=None) for hit in after if len(before) == 8)


def test_equal_texts_keep_their_order(cross):
    hits = [Hit(str(i), "the same", 1.0, None, "exact") for i in range(5)]
    (after,) = rerank(cross, ["hello"], [hits], k=4)
    assert [hit.id for hit in after] == list("01234")
    assert len({hit.rerank_score for hit in after}) == 1


def test_k_counts_different_texts(cross, sentences):
    hits = [Hit(str(i), sentences[i // 2], 10.0 - i, None, "exact") for i in range(8)]
    (after,) = rerank(cross, ["hello"], [hits], k=3)
    assert [hit.rerank_score is None for hit in after] == [False] * 6 + [True] * 2
    assert len({hit.rerank_score for hit in after}) == 4


def test_no_hits(cross):
    assert rerank(cross, ["hello", "hi"], [[], []]) == [[], []]
    assert rerank(cross, [], []) == []


def test_errors(cross, make_ranker, hits):
    with pytest.raises(InputError, match="a poly-encoder cannot re-rank: give a cross-encoder"):
        rerank(make_ranker("poly"), CONTEXTS, hits)
    with pytest.raises(InputError, match="rerank_k is 0 .int.; it must be at least 1"):
        rerank(cross, CONTEXTS, hits, k=0)
    with pytest.raises(InputError, match="2 contexts, but hits of 3"):
        rerank(cross, CONTEXTS[:2], hits)
