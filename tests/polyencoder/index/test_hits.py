"""Diverse hits of an index, with and without re-ranking: the choice is that of the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyencoder.calibration import Calibration
from polyencoder.errors import ConfigError, InputError
from polyencoder.index.diversity import marginal_relevance, pool_size
from polyencoder.index.hits import diverse_hits

TEXTS = [f"{what} {number} of {thing}" for what in ("a", "the") for thing in ("dogs", "snow") for number in range(20)]


@pytest.fixture
def index(ranker):
    return ranker.index([{"id": str(place), "text": text} for place, text in enumerate(TEXTS)])


def without(hits):
    return [hit._replace(considered=None) for hit in hits]


def test_hits_are_chosen_from_the_best_by_their_vectors(ranker, index):
    context, k = ["do you like dogs ?"], 5
    best = ranker.search(context, index, top_k=pool_size(k))
    assert len(best) == 50
    vectors = index.vectors_of([*(hit.id for hit in best), "gone"])
    torch.testing.assert_close(torch.from_numpy(vectors["3"]), torch.as_tensor(ranker.encode_candidates([TEXTS[3]]))[0])
    own = np.stack([vectors[hit.id] for hit in best])
    places = marginal_relevance(np.array([hit.score for hit in best]), own, k=k, diversity=0.99)
    hits = ranker.search(context, index, top_k=k, diversity=0.99)
    assert without(hits) == [best[place] for place in places] != best[:k]
    assert {hit.considered for hit in hits} == {50}
    assert index.search(ranker.encode_contexts([context]), top_k=k, diversity=0.99)[0] == hits
    assert ranker.search(context, index, top_k=k, diversity=0.0) == best[:k]


def test_of_reranked_hits_those_are_chosen_from(ranker, index, make_ranker):
    cross = make_ranker("cross")
    search = {"rerank": cross, "rerank_k": 8, "top_k": 10}
    plain = ranker.search("hello", index, **search)
    hits = ranker.search("hello", index, diversity=0.7, **search)
    assert [hit.considered for hit in hits] == [8] * 8 + [None] * 2
    assert set(without(hits[:8])) == set(plain[:8])
    assert hits[8:] == plain[8:]
    vectors = index.vectors_of([hit.id for hit in plain[:8]])
    scores = np.array([hit.rerank_score for hit in plain[:8]])
    own = np.stack([vectors[hit.id] for hit in plain[:8]])
    places = marginal_relevance(scores, own, k=10, diversity=0.7)
    assert without(hits[:8]) == [plain[place] for place in places]


def test_probabilities_stay(make_ranker):
    ranker = make_ranker("bi")
    ranker.calibration = Calibration(temperature=1.0, none=0.0, fingerprint="")
    index = ranker.index(TEXTS)
    known = {hit.text: hit.probability for hit in ranker.search("hello", index, top_k=50)}
    hits = ranker.search("hello", index, top_k=5, diversity=0.9)
    assert {hit.text: hit.probability for hit in hits} == {hit.text: known[hit.text] for hit in hits}
    assert sum(probability is not None for probability in known.values()) == 10  # those behind have none


def test_a_ranking_is_diverse_too(ranker, make_ranker):
    plain = ranker.rank("hello", TEXTS)
    vectors = torch.as_tensor(ranker.encode_candidates([one.text for one in plain])).numpy()
    places = marginal_relevance(np.array([one.score for one in plain]), vectors, k=80, diversity=0.5)
    ranked = ranker.rank("hello", TEXTS, diversity=0.5)
    assert without(ranked) == [plain[place] for place in places]
    assert ranker.rank("hello", TEXTS, diversity=0.5, top_k=3) == ranked[:3]
    assert {one.considered for one in ranked} == {80}
    with pytest.raises(InputError, match="cross-encoder"):
        make_ranker("cross").rank("hello", TEXTS[:3], diversity=0.5)
    for wrong in (-1, "much"):
        with pytest.raises(InputError, match="it must be a number from 0 to 1"):
            ranker.rank("hello", TEXTS[:3], diversity=wrong)
        with pytest.raises((InputError, ConfigError), match="it must be a number from 0 to 1"):
            ranker.search("hello", ranker.index(TEXTS[:3]), diversity=wrong)


def test_hits_that_were_removed_meanwhile_resemble_nothing(ranker, index):
    hits = ranker.search("hello", index, top_k=6)
    (found,) = diverse_hits([hits], lambda ids: {}, k=2, most=4, diversity=0.5)
    assert without(found) == hits
    assert [hit.considered for hit in found] == [4, 4, None, None, None, None]
    assert diverse_hits([[]], lambda ids: {}, k=2, most=4, diversity=0.5) == [[]]
