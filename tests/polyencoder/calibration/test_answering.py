"""Options that leave out answers: a minimum probability, or a risk that the calibration promises."""

from __future__ import annotations

import pytest

from polyencoder.calibration import AnswerOptions, FitData
from polyencoder.calibration.probability import get_index_name
from polyencoder.errors import ConfigError
from polyencoder.index import Searcher, SearchOptions
from tests.polyencoder.calibration.test_probability import CONTEXT, calibrated, promise

pytestmark = pytest.mark.slow


def test_what_a_risk_leaves_out(make_ranker, sentences):
    ranker = calibrated(make_ranker("bi"))
    whole = ranker.rank(CONTEXT, sentences)
    best, second = whole[0].probability, whole[1].probability
    calibrated(ranker, promises=(promise(risk=0.1, threshold=best), promise(risk=0.3, threshold=second)))
    assert [hit.risk for hit in ranker.rank(CONTEXT, sentences)] == [0.1] + [None] * 7
    assert [hit.text for hit in ranker.rank(CONTEXT, sentences, max_risk=0.3)] == [hit.text for hit in whole[:2]]
    assert ranker.rank(CONTEXT, sentences, max_risk=0.1, top_k=3) == ranker.rank(CONTEXT, sentences, top_k=1)


def test_a_search_for_a_risk(make_ranker, sentences):
    ranker = calibrated(make_ranker("bi"))
    index = ranker.index(sentences)
    hits = ranker.search(CONTEXT, index)
    tested = FitData(data="", examples=9, candidates=8, date="", index=get_index_name(index.address))
    promises = (promise(risk=0.1, threshold=hits[1].probability), promise(risk=0.05, threshold=1.0))
    calibrated(ranker, promises=promises, fitted_on=tested)
    answered = ranker.search(CONTEXT, index, max_risk=0.1)
    assert [(hit.id, hit.risk) for hit in answered] == [(hits[0].id, 0.1), (hits[1].id, None)]
    searcher = Searcher(ranker, index, max_risk=0.05)
    assert searcher([CONTEXT]) == [[]]
    assert searcher.improbable == [hits[0]._replace(risk=0.1)]
    with pytest.raises(ConfigError, match="max_risk is 0.2, and the calibration promises 0.1, 0.05 for searching"):
        ranker.search(CONTEXT, index, max_risk=0.2)


def test_in_a_hybrid_search_the_most_probable_hit_has_the_risk(make_ranker, sentences):
    """Which need not be the first, but where the risk is asked for."""
    ranker = calibrated(make_ranker("bi"))
    index = ranker.index(sentences, words=True)
    tested = FitData(data="", examples=9, candidates=8, date="", index=get_index_name(index.address))
    calibrated(ranker, promises=(promise(risk=0.1, threshold=0.0),), fitted_on=tested)
    queries = [text.split()[-2] for text in sentences]
    results = ranker.search_many(queries, index, hybrid=True)
    best = [max(hits, key=lambda hit: hit.score).id for hits in results]
    assert [[hit.id for hit in hits if hit.risk is not None] for hits in results] == [[id_] for id_ in best]
    assert best != [hits[0].id for hits in results]
    results = ranker.search_many(queries, index, hybrid=True, max_risk=0.1)
    assert [[(hit.id, hit.risk) for hit in hits[:1]] for hits in results] == [[(id_, 0.1)] for id_ in best]
    assert all(len({hit.id for hit in hits}) == len(hits) > 1 for hits in results)


def test_what_cannot_be_asked_for(make_ranker, sentences):
    ranker = make_ranker("bi")
    for name in ("min_probability", "max_risk"):
        with pytest.raises(ConfigError, match="calibrate MODEL with `polyencoder calibrate`") as error:
            ranker.rank(CONTEXT, sentences, **{name: 0.3})
        assert error.value.argument == name
        for value in (30, -0.1, "auto", float("nan"), True):
            with pytest.raises(ConfigError, match=f"{name} is .*; it must be a number from 0 to 1"):
                AnswerOptions(**{name: value})
    with pytest.raises(ConfigError, match="either min_probability or max_risk"):
        SearchOptions(min_probability=0.3, max_risk=0.3)
    with pytest.raises(TypeError, match="positional"):
        AnswerOptions(0.3)  # a probability or a risk?
    with pytest.raises(ConfigError, match="max_risk is for searches by vectors"):
        SearchOptions(words_only=True, max_risk=0.3)
    with pytest.raises(ConfigError, match="promises none for ranking: calibrate the model for this risk"):
        calibrated(ranker).rank(CONTEXT, sentences, max_risk=0.3)
