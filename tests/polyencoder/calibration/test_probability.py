"""Probabilities of scores, and the file that says how they are made."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder import CheckpointError, ConfigError, Ranker
from polyencoder.calibration import DEPTH, Calibration, FitData, calibration_file, read_calibration
from polyencoder.calibration.probability import rank_documents
from polyencoder.calibration.risk import Promise
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.index import Candidate
from polyencoder.index.searcher import Searcher
from polyencoder.selector import Selector
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CONTEXT = ["do you ski ?", "no , i have two dogs ."]


def calibrated(ranker: Ranker, **settings) -> Ranker:
    values = {
        "temperature": 3.0,
        "none": -1.0,
        "fingerprint": compute_model_fingerprint(ranker.model, ranker.text),
    } | settings
    ranker.calibration = Calibration(**values)
    return ranker


def promise(**values) -> Promise:
    return Promise(**{"risk": 0.1, "confidence": 0.95, "threshold": 0.5, "examples": 99, "answered": 0.5} | values)


def naive(scores: list[float], *, among: int, temperature: float, none: float) -> list[float]:
    weights = [math.exp(score / temperature) for score in scores]
    total = sum(weights) + among * math.exp(none)
    return [weight / total for weight in weights]


def test_the_formula():
    calibration = Calibration(temperature=2.0, none=-0.5, fingerprint="")
    scores = np.linspace([4, 4], -8, 14, axis=1)
    probabilities = calibration.probabilities(scores, among=np.array([14, 1000]))
    for row, among in zip(probabilities.tolist(), (14, 1000), strict=True):
        assert row == pytest.approx(naive(scores[0].tolist(), among=among, temperature=2.0, none=-0.5))
    assert probabilities[0].sum() > probabilities[1].sum()
    assert calibration.probabilities(np.array([[1.0, -np.inf]]), among=1)[0, 1] == 0


def test_equal_texts_are_one_candidate():
    calibration = Calibration(temperature=1.0, none=0.0, fingerprint="")
    once = calibration.of_ranking(["a", "b"], [2.0, 1.0], among=2)
    assert calibration.of_ranking(["a", "a", "b"], [2.0, 2.0, 1.0], among=2) == [once[0], *once]
    assert calibration.of_ranking([], [], among=2) == []
    weights = [math.exp(2), math.exp(1), 2]  # of "a", "b" and none of the two
    assert calibration.of_none(["a", "a", "b"], [2.0, 2.0, 1.0], among=2) == pytest.approx(2 / sum(weights))
    assert calibration.of_none([], [], among=2) == 1
    with pytest.raises(ValueError, match="shorter"):
        calibration.of_ranking(["a", "b"], [2.0], among=2)


def test_both_uses_of_the_same_weights():
    ranking = Calibration(temperature=2.0, none=0.0, fingerprint="b")
    tested = FitData(data="", examples=9, candidates=8, date="", index="replies")
    search = replace(ranking, temperature=3.0, fitted_on=tested)
    both = replace(ranking, index=search)
    assert ranking.beside(search) == search.beside(ranking) == both
    assert replace(search, none=1.0).beside(both) == replace(both, index=replace(search, none=1.0))
    for other in (None, ranking, *(replace(search, fingerprint=name) for name in "ac")):
        assert ranking.beside(other) == ranking


def test_probabilities_of_one_ranking_sum_to_1(make_ranker):
    ranker = calibrated(make_ranker("bi"), temperature=50.0, none=-4.0)  # weights much alike
    texts = [f"candidate {number}" for number in range(60)]
    selection = Selector(ranker).select(CONTEXT, texts)
    assert math.fsum(hit.probability for hit in selection.chosen) + selection.none_probability == pytest.approx(1)
    ranked = ranker.rank(CONTEXT, texts)
    weights = [math.exp(hit.score / 50) for hit in ranked]
    none = 60 * math.exp(-4) / (sum(weights) + 60 * math.exp(-4))
    assert selection.none_probability == pytest.approx(none)
    assert math.fsum(hit.probability for hit in ranked) == pytest.approx(1 - none)
    of_documents = rank_documents(texts, np.array([hit.score for hit in ranked]), ranker.calibration)
    assert math.fsum(value for _, value in of_documents) == pytest.approx(1 - none)


def test_what_a_search_finds_beyond_the_depth_has_no_probability(make_ranker):
    ranker = calibrated(make_ranker("bi"), temperature=50.0, none=-4.0)
    index = ranker.index([f"candidate {number}" for number in range(60)])
    hits = ranker.search(CONTEXT, index, top_k=30)
    values = [hit.probability for hit in hits]
    assert values[DEPTH:] == [None] * 20
    weights = [math.exp(hit.score / 50) for hit in hits[:DEPTH]]
    total = sum(weights) + 60 * math.exp(-4)
    assert values[:DEPTH] == pytest.approx([weight / total for weight in weights], rel=1e-3)
    assert ranker.search(CONTEXT, index, top_k=30, min_probability=0.0) == hits[:DEPTH]


# ---- rank and search


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_ranking(make_ranker, sentences, architecture):
    ranker = make_ranker(architecture)
    assert {hit.probability for hit in ranker.rank(CONTEXT, sentences)} == {None}
    calibrated(ranker)
    ranked = ranker.rank(CONTEXT, sentences)
    expected = naive([hit.score for hit in ranked], among=8, temperature=3.0, none=-1.0)
    assert [hit.probability for hit in ranked] == pytest.approx(expected)
    assert ranker.rank(CONTEXT, sentences, top_k=2) == ranked[:2]
    middle = ranked[3].probability
    assert ranker.rank(CONTEXT, sentences, min_probability=middle) == ranked[:4]
    assert ranker.rank(CONTEXT, sentences, min_probability=1, top_k=3) == []


def test_searching_is_ranking(make_ranker, sentences):
    ranker = calibrated(make_ranker("poly"))
    index = ranker.index(Candidate(f"id{i}", text, {"even": i % 2 == 0}) for i, text in enumerate(sentences))
    ranked = ranker.rank(CONTEXT, sentences)
    for top_k in (1, 8):
        hits = ranker.search(CONTEXT, index, top_k=top_k)
        assert [hit.probability for hit in hits] == pytest.approx([hit.probability for hit in ranked[:top_k]], rel=1e-3)
    assert ranker.search(CONTEXT, index, top_k=8, min_probability=hits[2].probability) == hits[:3]
    assert ranker.search_many([CONTEXT, "hello"], index, min_probability=1.0) == [[], []]
    among_four = ranker.search(CONTEXT, index, filter={"even": True})
    alone = ranker.rank(CONTEXT, sentences[::2])
    assert [hit.probability for hit in among_four] == pytest.approx([hit.probability for hit in alone], rel=1e-3)


@mostly_long(
    ("where", "top_k"),
    [("{}/folder", 1), ("{}/folder", 5), ("milvus:{}/texts.db", 2), ("{}/folder", 40), ("milvus:{}/texts.db", 40)],
    quick=3,
)
def test_a_text_of_many_entries_is_one_candidate(make_ranker, sentences, tmp_path, where, top_k):
    """However few are asked for: the best ten different texts count, among as many as there are."""
    if where.startswith("milvus"):
        pytest.importorskip("milvus_lite")
    ranker = make_ranker("poly")
    ranker.calibration = Calibration(temperature=2.0, none=-1.0, fingerprint="")
    texts = [*sentences, *(f"candidate {i}" for i in range(8))]
    first = ranker.rank(CONTEXT, texts)[0].text
    often = [f"of the first {i}" for i in range(30)]
    index = ranker.index([*texts, *({"text": first, "id": id_} for id_ in often)], where.format(tmp_path))
    ranked = ranker.rank(CONTEXT, texts)
    expected = {hit.text: hit.probability for hit in ranked}
    for hit in ranker.rank(CONTEXT, [*texts, *[first] * 30], top_k=top_k):
        assert hit.probability == pytest.approx(expected[hit.text], rel=1e-3)
    searcher = Searcher(ranker, index, top_k=top_k)
    (hits,) = searcher([CONTEXT])
    if not where.startswith("milvus"):  # which counts ids
        assert searcher.among == len(texts)
        best = ranked[:DEPTH]
        values = ranker.calibration.of_search([hit.text for hit in best], [hit.score for hit in best], among=len(texts))
        by_text = dict(zip([hit.text for hit in best], values, strict=True))
        assert [hit.probability for hit in hits] == pytest.approx([by_text[hit.text] for hit in hits], rel=1e-3)
    alone = {hit.text: hit.probability for hit in Searcher(ranker, index, top_k=60)([CONTEXT])[0]}
    assert [hit.probability for hit in hits] == pytest.approx([alone[hit.text] for hit in hits], rel=1e-6)
    assert len(hits) == top_k


def test_a_searcher_follows_its_index(make_ranker, sentences):
    ranker = make_ranker("poly")
    index = ranker.index(sentences[:2])
    searcher = Searcher(ranker, index, top_k=5)
    assert (searcher.top_k, searcher.among, len(searcher([CONTEXT])[0])) == (2, 2, 2)
    index.add([*sentences[2:], {"text": sentences[0], "id": "again"}])
    assert (searcher.top_k, searcher.among, len(searcher([CONTEXT])[0])) == (5, len(sentences), 5)
    assert len({hit.text for hit in Searcher(ranker, index, top_k=1, texts=4)([CONTEXT])[0]}) == 4


def test_whoever_orders_the_hits_says_how_likely_they_are(make_ranker, sentences):
    ranker, cross = calibrated(make_ranker("poly")), make_ranker("cross")
    index = ranker.index(sentences)
    hits = ranker.search(CONTEXT, index, rerank=cross, rerank_k=4)
    assert {hit.probability for hit in hits} == {None}
    with pytest.raises(ConfigError, match="a minimum probability needs a calibrated model"):
        ranker.search(CONTEXT, index, rerank=cross, min_probability=0.1)
    calibrated(cross)
    hits = ranker.search(CONTEXT, index, rerank=cross, rerank_k=4)
    expected = naive([hit.rerank_score for hit in hits[:4]], among=8, temperature=3.0, none=-1.0)
    assert [hit.probability for hit in hits[:4]] == pytest.approx(expected)
    assert [hit.probability for hit in hits[4:]] == [None] * 4
    assert len(ranker.search(CONTEXT, index, rerank=cross, rerank_k=4, min_probability=0)) == 4


@pytest.mark.parametrize("index", [None, "replies"])
def test_a_promise_is_for_the_use_that_was_tested(index):
    promises = (promise(risk=0.1, threshold=0.6), promise(risk=0.3, threshold=0.2))
    tested = FitData(data="", examples=9, candidates=9, date="", index=index)
    calibration = Calibration(temperature=1.0, none=0.0, fingerprint="", promises=promises, fitted_on=tested)
    assert calibration.promise(0.3, index=index and f"/home/of/{index}") == promises[1]
    for risk, use in ((0.2, index), (0.1, "other"), (0.1, None if index else "replies")):
        promised = "promises 0.1, 0.3 for" if use == index else "promises none for"
        with pytest.raises(ConfigError, match=promised) as error:
            calibration.promise(risk, index=use)
        assert error.value.argument == "max_risk"


# ---- on disk


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_travels_with_the_model(make_ranker, tmp_path, dtype):
    ranker = calibrated(make_ranker("poly"), promises=(promise(threshold=0.4),))
    ranker.save_pretrained(tmp_path / "model", dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert loaded.calibration is not None
    assert (loaded.calibration.temperature, loaded.calibration.promises[0].threshold) == (3.0, 0.4)
    make_ranker("poly", seed=1).save_pretrained(tmp_path / "model")
    assert not calibration_file(tmp_path / "model").exists()


def test_beside_a_model_file(make_ranker, tmp_path):
    ranker = calibrated(make_ranker("bi"))
    path = tmp_path / "model"
    torch.save({"model": ranker.model.state_dict(), "ranker_config": ranker.model.config.to_json()}, path)
    (tmp_path / "model.tokenizer.json").write_text(ranker.text.tokenizer.to_str(), encoding="utf-8")
    ranker.calibration.save(path)
    assert (tmp_path / "model.calibration.json").is_file()
    assert Ranker.from_pretrained(path, device="cpu").calibration == ranker.calibration


def test_an_export_and_its_model_file_are_calibrated_apart(make_ranker, sentences, tmp_path):
    ranker = make_ranker("bi")
    path, folder = tmp_path / "model", tmp_path / "exported"
    torch.save({"model": ranker.model.state_dict(), "ranker_config": ranker.model.config.to_json()}, path)
    path.with_name("model.tokenizer.json").write_text(ranker.text.tokenizer.to_str(), encoding="utf-8")
    ranker.save_pretrained(folder)
    for uncalibrated, calibrated_path in ((path, folder), (folder, path)):
        calibrated(ranker).calibration.save(calibrated_path)
        with pytest.raises(ConfigError, match=f"calibrate {uncalibrated} with `polyencoder calibrate`"):
            Ranker.from_pretrained(uncalibrated, device="cpu").rank(CONTEXT, sentences, min_probability=0.1)
        calibration_file(calibrated_path).rename(calibration_file(uncalibrated))
        Ranker.from_pretrained(uncalibrated, device="cpu").rank(CONTEXT, sentences, min_probability=0.1)
        calibration_file(uncalibrated).unlink()


@pytest.mark.parametrize("change", ["weights", "settings"])
def test_a_model_that_was_trained_again_is_not_calibrated(make_ranker, sentences, tmp_path, change):
    ranker = calibrated(make_ranker("poly"))
    ranker.save_pretrained(tmp_path / "model")
    other = make_ranker("poly", seed=1) if change == "weights" else make_ranker("poly", poly_attention="sqrt")
    other.save_pretrained(tmp_path / "other")
    ranker.calibration.save(tmp_path / "other")
    with pytest.warns(UserWarning, match="not used, as it was fitted to other weights .*; calibrate"):
        loaded = Ranker.from_pretrained(tmp_path / "other", device="cpu")
    assert loaded.rank(CONTEXT, sentences)[0].probability is None
    with pytest.raises(ConfigError, match="or was trained since"):
        loaded.rank(CONTEXT, sentences, min_probability=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "damaged"),
        ('{"format_version": 4, "temperature": 1, "none": NaN, "fingerprint": ""}', "damaged .*none is nan"),
        ('{"format_version": 4, "temperature": 1, "none": 0, "fingerprint": "", "promises": [1]}', "promises is"),
        ('{"format_version": 4, "temperature": -1, "none": 0, "fingerprint": ""}', "damaged .*temperature is -1"),
        ('{"format_version": 3, "temperature": 1, "none": 0, "fingerprint": ""}', "remove this file and calibrate"),
        ('{"format_version": 9}', "format version 9, but this version of polyencoder reads 4"),
    ],
)
def test_a_damaged_file(make_ranker, tmp_path, text, message):
    ranker = make_ranker("bi")
    ranker.save_pretrained(tmp_path)
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_calibration(tmp_path, ranker)


CALIBRATION = Calibration(temperature=3.0, none=-1.0, fingerprint="")
SCORES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12)


@given(st.floats(allow_nan=False))
def test_a_sigmoid_of_any_score(score):
    ((_, value),) = rank_documents(["a"], np.array([score]), None)
    ((_, opposite),) = rank_documents(["a"], np.array([-score]), None)
    assert 0 <= value <= 1
    assert value == pytest.approx(1 - opposite, abs=1e-12)
    if abs(score) < 500:
        assert value == pytest.approx(1 / (1 + math.exp(-score)))


@given(SCORES, st.none() | st.integers(1, 15), st.sampled_from([None, CALIBRATION]))
def test_the_order_is_that_of_the_scores_and_of_equal_ones_the_first_comes_first(scores, top_n, calibration):
    texts = [str(n) for n in range(len(scores))]
    ranked = rank_documents(texts, np.array(scores, dtype=np.float32), calibration, top_n=top_n)
    order = sorted(range(len(scores)), key=lambda row: -scores[row])
    assert [row for row, _ in ranked] == order[:top_n]
    values = [value for _, value in ranked]
    assert all(0 <= value <= 1 for value in values)
    assert values == sorted(values, reverse=True)


def test_probabilities_are_among_the_different_texts(make_ranker):
    ranker = make_ranker("bi")
    ranker.calibration = CALIBRATION
    texts = ["hello", "i ski .", "hello", "two dogs ."]
    expected = [(hit.index, pytest.approx(hit.probability)) for hit in ranker.rank("hi", texts)]
    assert rank_documents(texts, ranker.score(["hi"], texts)[0], CALIBRATION) == expected
