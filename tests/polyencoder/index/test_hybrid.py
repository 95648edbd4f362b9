"""Hybrid search: what vectors and words find, in one order; and what of it is reranked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.hits import Hit
from polyencoder.index.hybrid import DEPTH, fused
from polyencoder.index.options import SearchOptions

QUERY = "where is order 4711 ?"
TEXTS = [*(f"a {thing} number {number}" for thing in ("dog", "cat", "ski") for number in range(60)), "4711 was sent"]


@pytest.fixture
def index(ranker):
    records = [{"id": str(place), "text": text, "metadata": {"n": place % 2}} for place, text in enumerate(TEXTS)]
    return ranker.index([*records, {"id": "twin", "text": TEXTS[0], "metadata": {"n": 0}}], words=True)


def hit(id_: str, score: float, **fields) -> Hit:
    return Hit(id_, fields.pop("text", f"text {id_}"), score, None, fields.pop("found", "certified"), **fields)


def test_reciprocal_ranks_are_added():
    by_vectors = [hit("a", 9.0), hit("b", 8.0), hit("twin of b", 8.0, text="text b"), hit("c", 7.0)]
    by_words = [hit("d", 1.0, found="words", word_score=5.0), hit("c", 7.0, found="words", word_score=4.0)]
    found = fused(by_vectors, by_words)
    assert [one.id for one in found] == ["c", "a", "d", "b", "twin of b"]  # of a and d, a has the higher score
    sums = [1 / 63 + 1 / 62, 1 / 61, 1 / 61, 1 / 62, 1 / 62]
    assert [one.fused_score for one in found] == pytest.approx(sums)
    assert [one.found for one in found] == ["certified", "certified", "words", "certified", "certified"]
    assert [one.word_score for one in found] == [4.0, None, 5.0, None, None]
    assert fused([], []) == []


@given(st.permutations(range(300)), st.permutations(range(300)), st.integers(1, 250), st.integers(1, 300))
@settings(max_examples=50)
def test_longer_lists_add_hits_at_the_end(by_vectors, by_words, few, more):
    """As of a search for more, which a calibrated ranker does: what comes first does not depend on `top_k`."""

    def search(k: int) -> list[Hit]:
        depth = max(k, DEPTH)
        lists = (
            [hit(str(i), -place, text=f"text {i // 2}") for place, i in enumerate(order)]
            for order in (by_vectors, by_words)
        )
        return fused(*(hits[:depth] for hits in lists))[:k]

    first = search(few)
    assert search(max(few, more))[:few] == first
    sums = [one.fused_score for one in first]
    assert sums == sorted(sums, reverse=True)


def test_the_first_hits_do_not_depend_on_top_k_or_a_calibration(ranker, index):
    first, (*more,) = (ranker.search(QUERY, index, hybrid=True, top_k=k) for k in (30, 150))
    assert more[:30] == first
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(temperature=2.0, none=-3.0, fingerprint=fingerprint)
    try:
        likely = ranker.search(QUERY, index, hybrid=True, top_k=30)
    finally:
        ranker.calibration = None
    assert [one._replace(probability=None) for one in likely] == first


def test_words_find_what_vectors_do_not(ranker, index):
    place = str(len(TEXTS) - 1)
    ids = [one.id for one in ranker.search(QUERY, index, top_k=len(index))]
    assert ids.index(place) > 10  # of a model that is not trained
    hits = ranker.search(QUERY, index, top_k=10, hybrid=True)
    assert len(hits) == 10
    assert place in [one.id for one in hits[:2]]
    assert [one.fused_score for one in hits] == sorted((one.fused_score for one in hits), reverse=True)
    own = torch.as_tensor(ranker.score([QUERY], [one.text for one in hits]))[0]
    torch.testing.assert_close(torch.tensor([one.score for one in hits]), own, rtol=1e-4, atol=1e-3)
    (alone,) = ranker.search(QUERY, index, words_only=True)
    assert (alone.id, alone.found) == (place, "words")
    assert alone.word_score > 0
    same = index.search(ranker.encode_contexts([QUERY]), texts=[QUERY], top_k=10, hybrid=True)
    assert [one[:4] for one in same[0]] == [one[:4] for one in hits]


def test_filters_and_turns_of_the_context_hold_for_both(ranker, index):
    hits = ranker.search(QUERY, index, top_k=len(index), hybrid=True, filter={"n": 1})
    assert {one.metadata["n"] for one in hits} == {1}
    assert len({one.id for one in hits}) == len(hits)
    assert all(one.id != str(len(TEXTS) - 1) for one in hits)
    assert ranker.search(["4711 was sent", "4711 ?"], index, words_only=True) == []
    (kept,) = ranker.search(["4711 was sent", "4711 ?"], index, words_only=True, keep_turns=True)
    assert kept.text == "4711 was sent"
    twins = ranker.search("dog number 0", index, words_only=True, top_k=3)
    assert {one.id for one in twins[:2]} == {"0", "twin"}
    nothing = ranker.search("?!", index, hybrid=True, top_k=5)
    assert [one.id for one in nothing] == [one.id for one in ranker.search("?!", index, top_k=5)]


@pytest.mark.parametrize("architecture", ["cross", "late"])
def test_what_words_propose_is_reranked(ranker, index, make_ranker, architecture):
    reranker = make_ranker(architecture)
    if architecture == "late":
        ranker = reranker
        index = ranker.index(TEXTS, words=True)
    options = {"rerank": None if architecture == "late" else reranker, "rerank_k": 4, "top_k": 4}
    assert all("4711" not in one.text for one in ranker.search(QUERY, index, **options))
    hits = ranker.search(QUERY, index, hybrid=True, **options)
    (found,) = (one for one in hits if "4711" in one.text)
    assert found.rerank_score == pytest.approx(torch.as_tensor(reranker.score([QUERY], [found.text])).item(), abs=1e-3)
    assert [one.rerank_score for one in hits] == sorted((one.rerank_score for one in hits), reverse=True)


def test_words_alone_order_what_a_late_interaction_encoder_would_rerank(make_ranker):
    ranker = make_ranker("late")
    index = ranker.index(TEXTS, words=True)
    hits = ranker.search("4711 cat number 7", index, words_only=True, top_k=5)
    assert [one.word_score for one in hits] == sorted((one.word_score for one in hits), reverse=True)
    assert [one.rerank_score for one in hits] == [None] * 5
    with pytest.raises(ConfigError, match="rerank_k is read only with rerank"):
        ranker.search("4711 cat number 7", index, words_only=True, rerank_k=4)


def test_probabilities_are_those_of_a_search_by_vectors(ranker, index):
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(temperature=2.0, none=-3.0, fingerprint=fingerprint)
    try:
        every = {one.id: one.probability for one in ranker.search(QUERY, index, top_k=len(index))}
        hits = ranker.search(QUERY, index, hybrid=True, top_k=10)
        alone = ranker.search(QUERY, index, words_only=True)
        with pytest.raises(ConfigError, match="min_probability is for searches by vectors"):
            ranker.search(QUERY, index, words_only=True, min_probability=0.1)
    finally:
        ranker.calibration = None
    for one in hits:
        expected = every[one.id]  # None for all but the best
        assert one.probability == (None if expected is None else pytest.approx(expected, rel=1e-3))
    assert [one.probability for one in alone] == [None]  # the best scores are not among what words find


def test_diverse_hits_are_chosen_by_their_fused_scores(ranker, index):
    plain = ranker.search(QUERY, index, hybrid=True, top_k=5)
    hits = ranker.search(QUERY, index, hybrid=True, top_k=5, diversity=0.5)
    assert hits[0].id == plain[0].id
    assert len({one.id for one in hits}) == 5
    assert ranker.search(QUERY, index, hybrid=True, top_k=5, diversity=0.0) == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hybrid": True, "words_only": True}, "hybrid is for searches by vectors, and words_only"),
        ({"words_only": True, "exactness": "exact"}, "exactness is for searches by vectors"),
        ({"words_only": True, "diversity": 0.3}, "diversity is for searches by vectors"),
    ],
)
def test_options_that_contradict_each_other(ranker, index, options, message):
    with pytest.raises(ConfigError, match=message):
        ranker.search(QUERY, index, **options)


def test_a_search_by_words_needs_texts(ranker, index):
    contexts = ranker.encode_contexts([QUERY])
    with pytest.raises(InputError, match="give their texts"):
        index.search(contexts, SearchOptions(hybrid=True))
    with pytest.raises(InputError, match="2 texts for 1 contexts"):
        index.search(contexts, SearchOptions(hybrid=True), texts=["a", "b"])


def test_groups_are_limited_in_the_fused_order(ranker, index):
    every = ranker.search(QUERY, index, top_k=90, hybrid=True)  # of more, lists are longer, and sums others
    hits = ranker.search(QUERY, index, top_k=2, hybrid=True, group_by="n")
    firsts = [next(one for one in every if one.metadata["n"] == n) for n in (0, 1)]
    assert {one.id for one in hits} == {one.id for one in firsts}
    encoded = ranker.encode_contexts([QUERY, "a dog"])
    by_vectors = index.search(encoded, texts=[QUERY, "a dog"], top_k=2, hybrid=True, group_by="n")
    assert {one.id for one in by_vectors[0]} == {one.id for one in firsts}
