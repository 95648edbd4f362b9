"""Orders of hits: diverse ones by the vectors themselves, fused ones by reciprocal ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.hits import DEPTH, Hit, check_diversity, choose_diverse, compute_pool_size, diversify, fuse
from polyencoder.index.options import SearchOptions

TEXTS = [f"{what} {number} of {thing}" for what in ("a", "the") for thing in ("dogs", "snow") for number in range(20)]


@pytest.fixture
def index(ranker):
    return ranker.index([{"id": str(position), "text": text} for position, text in enumerate(TEXTS)])


def drop_considered(hits):
    return [hit._replace(considered=None) for hit in hits]


def test_hits_are_chosen_from_the_best_by_their_vectors(ranker, index):
    context, k = ["do you like dogs ?"], 5
    best = ranker.search(context, index, top_k=compute_pool_size(k))
    assert len(best) == 50
    vectors = index.get_vectors([*(hit.id for hit in best), "gone"])
    torch.testing.assert_close(torch.from_numpy(vectors["3"]), torch.as_tensor(ranker.encode_candidates([TEXTS[3]]))[0])
    best_vectors = np.stack([vectors[hit.id] for hit in best])
    order = choose_diverse(np.array([hit.score for hit in best]), best_vectors, k=k, diversity=0.99)
    hits = ranker.search(context, index, top_k=k, diversity=0.99)
    assert drop_considered(hits) == [best[position] for position in order] != best[:k]
    assert {hit.considered for hit in hits} == {50}
    assert index.search(ranker.encode_contexts([context]), top_k=k, diversity=0.99)[0] == hits
    assert ranker.search(context, index, top_k=k, diversity=0.0) == best[:k]


def test_of_reranked_hits_those_are_chosen_from(ranker, index, make_ranker):
    cross = make_ranker("cross")
    search = {"rerank": cross, "rerank_k": 8, "top_k": 10}
    plain = ranker.search("hello", index, **search)
    hits = ranker.search("hello", index, diversity=0.7, **search)
    assert [hit.considered for hit in hits] == [8] * 8 + [None] * 2
    assert set(drop_considered(hits[:8])) == set(plain[:8])
    assert hits[8:] == plain[8:]
    vectors = index.get_vectors([hit.id for hit in plain[:8]])
    scores = np.array([hit.rerank_score for hit in plain[:8]])
    pool_vectors = np.stack([vectors[hit.id] for hit in plain[:8]])
    order = choose_diverse(scores, pool_vectors, k=10, diversity=0.7)
    assert drop_considered(hits[:8]) == [plain[position] for position in order]


def test_a_ranking_is_diverse_too(ranker, make_ranker):
    plain = ranker.rank("hello", TEXTS)
    vectors = torch.as_tensor(ranker.encode_candidates([hit.text for hit in plain])).numpy()
    order = choose_diverse(np.array([hit.score for hit in plain]), vectors, k=80, diversity=0.5)
    ranked = ranker.rank("hello", TEXTS, diversity=0.5)
    assert drop_considered(ranked) == [plain[position] for position in order]
    assert ranker.rank("hello", TEXTS, diversity=0.5, top_k=3) == ranked[:3]
    assert {hit.considered for hit in ranked} == {80}
    with pytest.raises(InputError, match="cross-encoder"):
        make_ranker("cross").rank("hello", TEXTS[:3], diversity=0.5)
    for wrong in (-1, "much"):
        with pytest.raises(InputError, match="it must be a number from 0 to 1"):
            ranker.rank("hello", TEXTS[:3], diversity=wrong)
        with pytest.raises((InputError, ConfigError), match="it must be a number from 0 to 1"):
            ranker.search("hello", ranker.index(TEXTS[:3]), diversity=wrong)


def test_hits_that_were_removed_meanwhile_resemble_nothing(ranker, index):
    hits = ranker.search("hello", index, top_k=6)
    (diverse,) = diversify([hits], lambda ids: {}, k=2, depth=4, diversity=0.5)
    assert drop_considered(diverse) == hits
    assert [hit.considered for hit in diverse] == [4, 4, None, None, None, None]
    assert diversify([[]], lambda ids: {}, k=2, depth=4, diversity=0.5) == [[]]
    remaining = {hits[0].id: np.array([1.0, 1.0]), hits[2].id: np.array([1.0, 0.0])}
    (diverse,) = diversify([hits[:3]], lambda ids: remaining, k=2, depth=4, diversity=1.0)
    assert drop_considered(diverse) == hits[:3]


QUERY = "where is order 4711 ?"
NUMBERED = [*(f"a {thing} number {number}" for thing in ("dog", "cat", "ski") for number in range(60)), "4711 was sent"]


@pytest.fixture
def worded(ranker):
    records = [{"id": str(i), "text": text, "metadata": {"n": i % 2}} for i, text in enumerate(NUMBERED)]
    return ranker.index([*records, {"id": "twin", "text": NUMBERED[0], "metadata": {"n": 0}}], words=True)


def make_hit(id_: str, score: float, **fields) -> Hit:
    return Hit(id_, fields.pop("text", f"text {id_}"), score, None, fields.pop("found", "certified"), **fields)


def test_reciprocal_ranks_are_added():
    by_vectors = [make_hit("a", 9.0), make_hit("b", 8.0), make_hit("twin of b", 8.0, text="text b"), make_hit("c", 7.0)]
    by_words = [make_hit("d", 1.0, found="words", word_score=5.0), make_hit("c", 7.0, found="words", word_score=4.0)]
    fused = fuse(by_vectors, by_words)
    assert [hit.id for hit in fused] == ["c", "a", "d", "b", "twin of b"]  # of a and d, a has the higher score
    sums = [1 / 63 + 1 / 62, 1 / 61, 1 / 61, 1 / 62, 1 / 62]
    assert [hit.fused_score for hit in fused] == pytest.approx(sums)
    assert [hit.found for hit in fused] == ["certified", "certified", "words", "certified", "certified"]
    assert [hit.word_score for hit in fused] == [4.0, None, 5.0, None, None]
    assert fuse([], []) == []
    many = [make_hit(str(i), -i) for i in range(DEPTH + 2)]
    for fused in (fuse(many, []), fuse([], many)):
        assert [hit.fused_score for hit in fused] == pytest.approx([1 / (61 + i) for i in range(DEPTH + 2)])


@pytest.mark.slow
@given(st.permutations(range(300)), st.permutations(range(300)), st.integers(1, 250), st.integers(1, 300))
@settings(max_examples=50)
def test_longer_lists_add_hits_at_the_end(by_vectors, by_words, shorter, longer):
    """A calibrated ranker searches for more hits: the first ones do not depend on `top_k`."""

    def search(k: int) -> list[Hit]:
        depth = max(k, DEPTH)
        lists = (
            [make_hit(str(i), -rank, text=f"text {i // 2}") for rank, i in enumerate(order)]
            for order in (by_vectors, by_words)
        )
        return fuse(*(hits[:depth] for hits in lists))[:k]

    first = search(shorter)
    assert search(max(shorter, longer))[:shorter] == first
    sums = [hit.fused_score for hit in first]
    assert sums == sorted(sums, reverse=True)


def test_the_first_hits_do_not_depend_on_top_k_or_a_calibration(ranker, worded):
    first, (*longer,) = (ranker.search(QUERY, worded, hybrid=True, top_k=k) for k in (30, 150))
    assert longer[:30] == first
    fingerprint = compute_model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(temperature=2.0, none=-3.0, fingerprint=fingerprint)
    likely = ranker.search(QUERY, worded, hybrid=True, top_k=30)
    assert [hit._replace(probability=None) for hit in likely] == first


def test_words_find_what_vectors_do_not(ranker, worded):
    sent_id = str(len(NUMBERED) - 1)
    ids = [hit.id for hit in ranker.search(QUERY, worded, top_k=len(worded))]
    assert ids.index(sent_id) > 10  # of a model that is not trained
    hits = ranker.search(QUERY, worded, top_k=10, hybrid=True)
    assert len(hits) == 10
    assert sent_id in [hit.id for hit in hits[:2]]
    assert [hit.fused_score for hit in hits] == sorted((hit.fused_score for hit in hits), reverse=True)
    expected = torch.as_tensor(ranker.score([QUERY], [hit.text for hit in hits]))[0]
    torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), expected, rtol=1e-4, atol=1e-3)
    (alone,) = ranker.search(QUERY, worded, words_only=True)
    assert (alone.id, alone.found) == (sent_id, "words")
    assert alone.word_score > 0
    same = worded.search(ranker.encode_contexts([QUERY]), texts=[QUERY], top_k=10, hybrid=True)
    assert [hit[:4] for hit in same[0]] == [hit[:4] for hit in hits]


def test_filters_and_turns_of_the_context_hold_for_both(ranker, worded):
    hits = ranker.search(QUERY, worded, top_k=len(worded), hybrid=True, filter={"n": 1})
    assert {hit.metadata["n"] for hit in hits} == {1}
    assert len({hit.id for hit in hits}) == len(hits)
    assert all(hit.id != str(len(NUMBERED) - 1) for hit in hits)
    assert ranker.search(["4711 was sent", "4711 ?"], worded, words_only=True) == []
    (turn,) = ranker.search(["4711 was sent", "4711 ?"], worded, words_only=True, keep_turns=True)
    assert turn.text == "4711 was sent"
    twins = ranker.search("dog number 0", worded, words_only=True, top_k=3)
    assert {hit.id for hit in twins[:2]} == {"0", "twin"}
    nothing = ranker.search("?!", worded, hybrid=True, top_k=5)
    assert [hit.id for hit in nothing] == [hit.id for hit in ranker.search("?!", worded, top_k=5)]


@pytest.mark.parametrize("architecture", ["cross", "late"])
def test_what_words_propose_is_reranked(ranker, worded, make_ranker, architecture):
    reranker = make_ranker(architecture)
    if architecture == "late":
        ranker = reranker
        worded = ranker.index(NUMBERED, words=True)
    options = {"rerank": None if architecture == "late" else reranker, "rerank_k": 4, "top_k": 4}
    assert all("4711" not in hit.text for hit in ranker.search(QUERY, worded, **options))
    hits = ranker.search(QUERY, worded, hybrid=True, **options)
    (sent,) = (hit for hit in hits if "4711" in hit.text)
    assert sent.rerank_score == pytest.approx(torch.as_tensor(reranker.score([QUERY], [sent.text])).item(), abs=1e-3)
    assert [hit.rerank_score for hit in hits] == sorted((hit.rerank_score for hit in hits), reverse=True)


def test_words_alone_order_what_a_late_interaction_encoder_would_rerank(make_ranker):
    ranker = make_ranker("late")
    worded = ranker.index(NUMBERED, words=True)
    hits = ranker.search("4711 cat number 7", worded, words_only=True, top_k=5)
    assert [hit.word_score for hit in hits] == sorted((hit.word_score for hit in hits), reverse=True)
    assert [hit.rerank_score for hit in hits] == [None] * 5
    with pytest.raises(ConfigError, match="rerank_k is read only with rerank"):
        ranker.search("4711 cat number 7", worded, words_only=True, rerank_k=4)


def test_probabilities_are_those_of_a_search_by_vectors(ranker, worded):
    fingerprint = compute_model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = Calibration(temperature=2.0, none=-3.0, fingerprint=fingerprint)
    every = {hit.id: hit.probability for hit in ranker.search(QUERY, worded, top_k=len(worded))}
    hits = ranker.search(QUERY, worded, hybrid=True, top_k=10)
    alone = ranker.search(QUERY, worded, words_only=True)
    with pytest.raises(ConfigError, match="min_probability is for searches by vectors"):
        ranker.search(QUERY, worded, words_only=True, min_probability=0.1)
    for hit in hits:
        expected = every[hit.id]  # None for all but the best
        assert hit.probability == (None if expected is None else pytest.approx(expected, rel=1e-3))
    assert [hit.probability for hit in alone] == [None]  # the best scores are not among what words find


def test_diverse_hits_are_chosen_by_their_fused_scores(ranker, worded):
    plain = ranker.search(QUERY, worded, hybrid=True, top_k=5)
    hits = ranker.search(QUERY, worded, hybrid=True, top_k=5, diversity=0.5)
    assert hits[0].id == plain[0].id
    assert len({hit.id for hit in hits}) == 5
    assert ranker.search(QUERY, worded, hybrid=True, top_k=5, diversity=0.0) == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hybrid": True, "words_only": True}, "hybrid is for searches by vectors, and words_only"),
        ({"words_only": True, "exactness": "exact"}, "exactness is for searches by vectors"),
        ({"words_only": True, "diversity": 0.3}, "diversity is for searches by vectors"),
    ],
)
def test_options_that_contradict_each_other(ranker, worded, options, message):
    with pytest.raises(ConfigError, match=message):
        ranker.search(QUERY, worded, **options)


def test_a_search_by_words_needs_texts(ranker, worded):
    contexts = ranker.encode_contexts([QUERY])
    with pytest.raises(InputError, match="give their texts"):
        worded.search(contexts, SearchOptions(hybrid=True))
    with pytest.raises(InputError, match="2 texts for 1 contexts"):
        worded.search(contexts, SearchOptions(hybrid=True), texts=["a", "b"])


def test_groups_are_limited_in_the_fused_order(ranker, worded):
    every = ranker.search(QUERY, worded, top_k=90, hybrid=True)  # a larger top_k has longer lists and other sums
    hits = ranker.search(QUERY, worded, top_k=2, hybrid=True, group_by="n")
    firsts = [next(hit for hit in every if hit.metadata["n"] == n) for n in (0, 1)]
    assert {hit.id for hit in hits} == {hit.id for hit in firsts}
    encoded = ranker.encode_contexts([QUERY, "a dog"])
    by_vectors = worded.search(encoded, texts=[QUERY, "a dog"], top_k=2, hybrid=True, group_by="n")
    assert {hit.id for hit in by_vectors[0]} == {hit.id for hit in firsts}


def values(scores, vectors, chosen, diversity) -> np.ndarray:
    """(1 - d) r - d max cos for each candidate, with scores r from 0 to 1; -inf for those that were chosen."""

    def cosine(a, b) -> float:
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        return float(a @ b) / lengths if lengths else 0.0

    low, high = min(scores), max(scores)
    marginal = []
    for candidate, score in enumerate(scores):
        relevance = (score - low) / (high - low) if high > low else 0.0
        similar = max((cosine(vectors[candidate], vectors[other]) for other in chosen), default=0.0)
        marginal.append(-np.inf if candidate in chosen else (1 - diversity) * relevance - diversity * similar)
    return np.array(marginal)


@pytest.mark.slow
@given(data=st.data(), n=st.integers(1, 9), dim=st.integers(1, 3), diversity=st.floats(0, 1), k=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_each_choice_has_the_largest_marginal_relevance(data, n, dim, diversity, k):
    scores = np.array(data.draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n)), dtype=float)
    numbers = st.lists(st.integers(-2, 2), min_size=n * dim, max_size=n * dim)
    vectors = np.array(data.draw(numbers), dtype=float).reshape(n, dim)
    chosen = choose_diverse(scores, vectors, k=k, diversity=diversity)
    assert len(set(chosen)) == len(chosen) == min(k, n)
    assert chosen[0] == int(np.argmax(scores))
    for step in range(1, len(chosen)):
        relevances = values(scores, vectors, chosen[:step], diversity)
        assert relevances[chosen[step]] >= relevances.max() - 1e-9
    assert choose_diverse(3 * scores - 7, 2 * vectors, k=k, diversity=diversity) == pytest.approx(chosen)


def test_by_hand():
    """Two that are alike: the worse one comes last with diversity, second without."""
    scores, vectors = np.array([3.0, 2.9, 1.0]), np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    assert choose_diverse(scores, vectors, k=3, diversity=0.0) == [0, 1, 2]
    assert choose_diverse(scores, vectors, k=3, diversity=0.6) == [0, 2, 1]
    assert choose_diverse(scores, vectors, k=2, diversity=1.0) == [0, 2]
    assert choose_diverse(np.ones(3), np.zeros((3, 2)), k=3, diversity=0.5) == [0, 1, 2]
    assert choose_diverse(np.zeros(0), np.zeros((0, 2)), k=3, diversity=0.5) == []


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.3"])
def test_what_is_no_diversity(value):
    with pytest.raises(InputError, match="diversity is .*; it must be a number from 0 to 1"):
        check_diversity(value)
