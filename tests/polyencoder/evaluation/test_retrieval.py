"""Retrieval by judgements: runs of rankers, ir_measures' values, counts, and the comparison of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation.retrieval import check_measures, evaluate_retrieval, evaluate_run
from polyencoder.evaluation.runs import rerank_run, search_run
from polyencoder.settings.evaluate import MEASURES

pytest.importorskip("ir_measures")

QRELS = {"q1": {"d1": 2, "d2": 1, "d3": 0}, "q2": {"d4": 1}}
RUN = {"q1": {"d3": 3.0, "d1": 2.0, "d9": 1.5, "d2": 1.0}, "q3": {"d1": 1.0}}


def test_measures_by_hand():
    """nDCG with gains that are the labels (Jarvelin and Kekalainen, 2002), reciprocal rank, average precision."""
    report = evaluate_run(RUN, QRELS, measures=["nDCG@10", "RR@10", "AP", "R@2", "P(rel=2)@2", "NumRet"])
    dcg = 2 / math.log2(3) + 1 / math.log2(5)
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    by_hand = {"nDCG@10": dcg / ideal, "RR@10": 1 / 2, "AP": (1 / 2 + 2 / 4) / 2, "R@2": 1 / 2, "P(rel=2)@2": 1 / 2}
    assert report.measured.by_query["q1"] == pytest.approx({**by_hand, "NumRet": 4})
    means = {name: value / 2 for name, value in by_hand.items()}  # q2 has no result, and counts as 0
    assert report.measured.means == pytest.approx({**means, "NumRet": 4})
    assert (report.queries, report.without_results) == (2, 1)
    assert set(report.intervals) == set(by_hand)  # NumRet is a sum
    low, high = report.intervals["AP"]
    assert 0 == low < report.measured.means["AP"] < high == 0.5


def test_a_measure_without_a_value_for_each_query():
    """Accuracy has none where nothing is relevant: it has a mean, without an interval or a p value."""
    qrels = {"q1": {"a": 1, "b": 0}, "q2": {"c": 0}}
    run = {"q1": {"b": 2.0, "a": 1.0}, "q2": {"c": 1.0}}
    report = evaluate_run(run, qrels, measures=["Accuracy"], compare=run)
    assert report.measured.means == {"Accuracy": 0.0}
    assert report.intervals == report.p == {}


@pytest.mark.slow
@given(
    qrels=st.dictionaries(
        st.sampled_from("abcd"), st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 3), min_size=1), min_size=1
    ).filter(lambda qrels: any(any(labels.values()) for labels in qrels.values())),
    run=st.dictionaries(
        st.sampled_from("abcde"), st.dictionaries(st.sampled_from("tuvwxyz"), st.integers(-9, 9).map(float))
    ),
)
@settings(max_examples=40, deadline=None)
def test_the_measures_are_those_of_trec_eval(qrels, run):
    """pytrec_eval itself, with what it leaves out counted as 0."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    names = {"nDCG@10": "ndcg_cut_10", "AP": "map", "R@5": "recall_5", "RR": "recip_rank"}
    report = evaluate_run(run, qrels, measures=list(names))
    answered = {query: results for query, results in run.items() if results}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map", "recall.5", "recip_rank"}).evaluate(answered)
    for query in qrels:
        expected = {name: theirs.get(query, {}).get(other, 0.0) for name, other in names.items()}
        assert report.measured.by_query[query] == pytest.approx(expected)


@pytest.fixture
def queries(sentences):
    return {"q1": sentences[0], "q2": [sentences[1], sentences[2]], "unjudged": "hello"}


@pytest.fixture
def texts(sentences):
    return {f"d{number}": text for number, text in enumerate(sentences)}


def index_of(ranker, texts: dict[str, str]):
    return ranker.index([{"id": id_, "text": text} for id_, text in texts.items()])


QUERIES_AND_DOCUMENTS = {"q1": {"d0": 1}, "q2": {"d3": 2, "d1": 1, "gone": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_a_search_and_a_rerank_order_by_the_rankers_scores(make_ranker, queries, texts, architecture):
    ranker = make_ranker(architecture)
    ids = list(texts)
    scores = {
        query: dict(zip(ids, ranker.score([context], list(texts.values()))[0].tolist(), strict=True))
        for query, context in queries.items()
    }
    start = {query: {id_: float(-rank) for rank, id_ in enumerate(ids)} for query in queries}
    reranked = rerank_run(ranker, start, queries, texts)
    assert reranked == {query: pytest.approx(expected, abs=1e-4) for query, expected in scores.items()}
    if not ranker.model.has_vectors:
        return
    index = index_of(ranker, texts)
    searched = search_run(ranker, index, queries)
    assert searched == {query: pytest.approx(expected, abs=1e-4) for query, expected in scores.items()}
    two = search_run(ranker, index, queries, depth=2)
    assert [list(results) for results in two.values()] == [list(results)[:2] for results in searched.values()]
    assert index.get_texts([*ids, "gone"]) == texts


def test_what_is_behind_the_depth_stays_behind(make_ranker, queries, texts):
    run = {"q1": {id_: float(100 - rank) for rank, id_ in enumerate(texts)}}
    ranker = make_ranker("cross")
    ranker.model.linear.weight.data *= 1000  # scores far from each other
    reranked = rerank_run(ranker, run, queries, {id_: texts[id_] for id_ in list(texts)[:3]}, depth=3)
    order = sorted(reranked["q1"], key=lambda id_: -reranked["q1"][id_])
    assert reranked["q1"][order[0]] > reranked["q1"][order[2]] + 10
    assert set(order[:3]) == {"d0", "d1", "d2"}
    assert order[3:] == list(texts)[3:]
    with pytest.raises(InputError, match="query 'q1': its result 'd0' is not among the documents"):
        rerank_run(make_ranker("cross"), run, queries, {})


def test_the_order_behind_the_depth_is_kept_to_the_last_bit(make_ranker, queries, texts):
    """Scores that only float64 tells apart, ties, and scores on a scale of any size."""
    behind = {"d1": 1 + 1e-12, "d5": 1.0, "d2": 1.0, "d4": -1e30}
    run = {"q1": {"d0": 1e300, **behind}}
    reranked = rerank_run(make_ranker("cross"), run, queries, texts, depth=1)["q1"]
    scores = [np.float32(reranked[id_]) for id_ in run["q1"]]
    assert scores[0] > scores[1] > scores[2] == scores[3] > scores[4]


def test_a_document_with_its_querys_id(make_ranker, texts):
    ranker, queries = make_ranker("bi"), {"d1": texts["d1"]}
    index = index_of(ranker, texts)
    results = search_run(ranker, index, queries, depth=3, ignore_identical_ids=True)["d1"]
    whole = list(search_run(ranker, index, queries)["d1"])
    assert "d1" in whole  # a candidate that equals its query is a result
    assert list(results) == [id_ for id_ in whole if id_ != "d1"][:3]


def test_the_report(make_ranker, queries, texts):
    ranker = make_ranker("bi")
    retrieval = evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, index=index_of(ranker, texts))
    report = retrieval.report()
    assert [report[name] for name in ("queries", "unjudged", "without_results", "missing")] == [2, 1, 0, 1]
    assert set(retrieval.run) == {"q1", "q2"}
    assert {*MEASURES} <= report.keys()
    again = evaluate_retrieval(
        ranker, queries, QUERIES_AND_DOCUMENTS, rerank={"q1": retrieval.run["q1"]}, texts=texts, compare=retrieval.run
    )
    assert again.without_results == 1
    assert again.compared == retrieval.measured
    assert again.measured.by_query["q1"] == pytest.approx(retrieval.measured.by_query["q1"])
    assert set(again.p or {}) == {*MEASURES}
    same = evaluate_run(retrieval.run, QUERIES_AND_DOCUMENTS, compare=retrieval.run).report()
    assert same["compared"]["p"] == dict.fromkeys(MEASURES, 1.0)


def test_what_does_not_fit_is_refused(make_ranker, queries, texts):
    ranker = make_ranker("bi")
    index = ranker.index(list(texts.values()))  # ids of their own
    with pytest.raises(InputError, match="the judged query 'q9' is not among the 3 queries"):
        evaluate_retrieval(ranker, queries, {"q9": {"d0": 1}}, index=index)
    with pytest.raises(InputError, match="none of the 4 judged documents is in the index"):
        evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, index=index)
    with pytest.raises(ConfigError, match="give an index to search, or a run to rerank"):
        evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, texts=texts)
    run = {"q1": {"d0": 1.0}}
    with pytest.raises(ConfigError, match="give an index, or texts"):
        evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, rerank=run)
    for compare, message in (
        ({"x": {"d0": 1.0}}, "has none of the 2 judged queries"),
        ({"q1": {"x": 1.0}}, "no document of the index or the texts: it is of another corpus"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, rerank=run, texts=texts, compare=compare)
    with pytest.raises(InputError, match="has none of the 2 judged queries"):
        evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, rerank={"x": {"d0": 1.0}}, texts=texts)
    with pytest.raises(InputError, match="has none of the 2 judged queries"):
        evaluate_run(run, QUERIES_AND_DOCUMENTS, compare={"x": {"d0": 1.0}})


def test_a_run_need_not_find_what_is_judged(make_ranker, queries, texts, caplog):
    """A good run of the same corpus may have none of few judgements."""
    ranker, qrels = make_ranker("bi"), {"q1": {"d0": 1}}
    index = index_of(ranker, texts)
    run = {"q1": {"d4": 2.0, "d5": 1.0}}
    for source in ({"index": index}, {"rerank": {"q1": {"d6": 1.0}}, "texts": texts}):
        report = evaluate_retrieval(ranker, queries, qrels, measures=["RR"], compare=run, **source)
        assert report.compared is not None
        assert report.compared.means == {"RR": 0.0}
    assert not caplog.records
    assert evaluate_run(run, qrels, measures=["RR"]).measured.means == {"RR": 0.0}
    assert "no result is a judged document; is it of another corpus?" in caplog.text


def test_a_measure_that_looks_behind_the_depth_is_told(make_ranker, queries, texts, caplog):
    """R@3 of two results is R@2."""
    ranker, qrels = make_ranker("bi"), {"q1": {"d0": 1}}
    index = index_of(ranker, texts)
    for depth, measures in ((3, ["R@3"]), (2, ["R@2", "AP"]), (len(texts), ["R@100"])):
        evaluate_retrieval(ranker, queries, qrels, index=index, measures=measures, depth=depth)
    assert not caplog.records
    evaluate_retrieval(ranker, queries, qrels, index=index, measures=["R@3", "RR"], depth=2)
    assert "R@3: only the first 2 results are found; give a larger depth" in caplog.text


def test_a_measure_of_results_that_are_not_judged(make_ranker, queries, texts):
    """Accuracy of judgements that are all relevant divides by the number of other results."""
    run, qrels = {"q1": {"d0": 2.0, "d4": 1.0}}, {"q1": {"d0": 1}}
    options = {"rerank": run, "texts": texts, "measures": ["Accuracy"], "compare": run}
    report = evaluate_retrieval(make_ranker("bi"), queries, qrels, **options)
    assert report.compared is not None
    assert report.compared.means == {"Accuracy": 1.0}
    assert report.measured.means["Accuracy"] in (0.0, 1.0)


def test_other_runs_are_checked_before_the_search(make_ranker, queries, texts, monkeypatch):
    """A mistake is no error after hours of searching."""
    ranker = make_ranker("bi")
    index = index_of(ranker, texts)
    monkeypatch.setattr(type(index), "_search", None)
    for changes, error in (
        ({"compare": {"q1": {"x": 1.0}}}, InputError),
        ({"compare": {"x": {"d0": 1.0}}}, InputError),
        ({"measures": ["ERR@10"]}, ConfigError),  # whose program wants numbers for ids of queries
    ):
        with pytest.raises(error):
            evaluate_retrieval(ranker, queries, QUERIES_AND_DOCUMENTS, index=index, **changes)


def test_identical_ids_are_left_out_of_both_runs(make_ranker):
    """A run beside itself: no difference."""
    texts = {"a": "i have two dogs and a cat .", "b": "i am a teacher ."}
    run, qrels = {"a": {"a": 2.0, "b": 1.0}}, {"a": {"b": 1}}
    options = {"rerank": run, "texts": texts, "measures": ["RR"], "compare": run}
    report = evaluate_retrieval(make_ranker("cross"), {"a": texts["a"]}, qrels, ignore_identical_ids=True, **options)
    assert report.measured.means == report.compared.means == {"RR": 1.0}
    assert report.p == {"RR": 1.0}


@pytest.mark.parametrize(
    ("qrels", "message"), [({}, "no judgement"), ({"q1": {}}, "no judgement"), ({"q1": {"d1": 0}}, "all labels are 0")]
)
def test_nothing_is_judged_or_right(qrels, message):
    with pytest.raises(InputError, match=message):
        evaluate_run(RUN, qrels)


def test_a_measure_that_fails_on_what_was_found_does_not_lose_the_run(make_ranker):
    """gdeval cannot read a document's id with a space, which no judgement has."""
    texts = {"a": "i have two dogs and a cat .", "b c": "i am a teacher ."}
    ranker, qrels = make_ranker("bi"), {"1": {"a": 1}}
    index = index_of(ranker, texts)
    report = evaluate_retrieval(ranker, {"1": "any pets ?"}, qrels, index=index, measures=["AP", "ERR@10", "RR"])
    assert {*report.run["1"]} == {*texts}
    assert {*report.failed} == {"ERR@10"}
    assert report.report()["failed"] == report.failed
    alone = evaluate_run(report.run, qrels, measures=["AP", "RR"])
    assert (report.measured.means, report.intervals) == (alone.measured.means, alone.intervals)
    options = {"rerank": {"1": {"a": 1.0}}, "texts": texts, "compare": report.run, "measures": ["ERR@10"]}
    other = evaluate_retrieval(ranker, {"1": "any pets ?"}, qrels, **options)
    assert ({*other.measured.means}, other.compared.means, {*other.failed}) == ({"ERR@10"}, {}, {"ERR@10"})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nDCG10"], "ir_measures has no measure 'nDCG10' .* its names are .*nDCG.* https://ir-measur.es"),
        (["nDCG@"], "ir_measures has no measure 'nDCG@'"),
        (["nDCG@x"], "ir_measures has no measure 'nDCG@x'"),
        (["nDCG@0"], "cannot compute 'nDCG@0' here: its cutoff must be at least 1"),
        (["P"], "cannot compute 'P' here"),
        ([], "give a list of names"),
        ("AP", "give a list of names"),
    ],
)
def test_measures_that_are_none(names, message):
    with pytest.raises(ConfigError, match=message):
        check_measures(names)
