"""Ranks, and the metrics of an example, a search and a batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from polyencoder.data.pool import build_batch_pool, build_inline_pool, build_shared_pool
from polyencoder.evaluation.metrics import Tally, compute_ndcg, merge_twins, of_example, of_pool, of_search, ranks
from polyencoder.evaluation.names import select_main_measures

NAN = math.nan


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), min_size=1, max_size=8))
def test_a_rank_is_the_worst_place_in_a_sort(scores):
    """For each label of a row."""
    columns = range(len(scores))
    orders = [sorted(columns, key=lambda column, right=label: (-scores[column], column == right)) for label in columns]
    expected = [order.index(label) + 1 for label, order in enumerate(orders)]
    assert ranks(torch.tensor([scores] * len(scores)), torch.tensor(columns)).tolist() == expected


def test_a_collapsed_model_is_right_nowhere():
    pool = build_inline_pool([["a", "b", "c"]] * 2, ["a", "c"])
    for metrics in of_pool(torch.zeros(2, 3), pool):
        assert (metrics["rank"], metrics["hits@1"], metrics["mrr"]) == (3, 0, pytest.approx(1 / 3))
    graded = build_inline_pool([["a", "b", "c"]], ["a"], [{"a": 2.0, "c": 1.0}])
    (metrics,) = of_pool(torch.zeros(1, 3), graded)
    assert metrics["rank"] == 2, "other right candidates are none that it loses to"
    assert metrics["nDCG@10"] == pytest.approx((1 / math.log2(3) + 2 / 2) / (2 + 1 / math.log2(3)))


@pytest.mark.parametrize("kind", ["inline", "batch"])
def test_candidates_of_equal_tokens_are_one(kind):
    """The label's twin is right, twins of a wrong candidate count once, and a masked twin has no score."""
    texts, keys = ["Yes.", "yes.", "no", "No", "maybe"], [0, 0, 1, 1, 2]
    scores = torch.tensor([[1.0, 1.0, 2.0, 2.0, 0.0]])
    pool = build_inline_pool([texts], ["yes."]) if kind == "inline" else build_shared_pool(texts, ["yes."])
    merged, merged_pool = merge_twins(scores, pool, keys)
    assert (merged.tolist(), merged_pool.labels.tolist()) == ([[1.0, 2.0, 0.0]], [0])
    (metrics,) = of_pool(merged, merged_pool)
    assert (metrics["rank"], "R5@1" in metrics) == (2, True)
    assert merge_twins(scores, pool, range(5)) == (scores, pool)


def test_twins_of_candidates_of_several_lengths_are_merged():
    pool = build_inline_pool([["a", "A", "b"], ["b", "c"], ["A", "c", "B"]], ["A", "c", "A"])
    scores = pool.mask_scores(torch.tensor([[1.0, 1.0, 2.0], [3.0, 4.0, 9.0], [5.0, 6.0, 7.0]]))
    merged, merged_pool = merge_twins(scores, pool, [text.lower() for text in pool.texts])
    rows = [dict(zip(merged_pool.list_candidates(row), merged[row].tolist(), strict=False)) for row in range(3)]
    lower = [{text.lower(): score for text, score in row.items()} for row in rows]
    assert lower == [{"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 4.0}, {"a": 5.0, "c": 6.0, "b": 7.0}]
    assert [metrics["rank"] for metrics in of_pool(merged, merged_pool)] == [2, 1, 3]


def test_nan_is_worst():
    assert ranks(torch.tensor([[1.0, NAN, 2.0]]), torch.tensor([1])).tolist() == [3]
    assert ranks(torch.tensor([[1.0, NAN, 2.0]]), torch.tensor([2])).tolist() == [2]  # nobody knows: as if better


def test_an_example():
    hits = {"@1": 0.0, "@5": 1.0, "@10": 1.0}
    expected = {f"{name}{at}": value for name in ("R20", "hits") for at, value in hits.items()}
    assert of_example(5, 1.5, 20) == {"loss": 1.5, "rank": 5.0, "mrr": 0.2, **expected}
    assert of_example(2, 0.0, 5, hits_at=(1, 5)).keys() == {"loss", "rank", "mrr", "R5@1", "hits@1", "hits@5"}
    assert of_example(2, 0.0, None, hits_at=(1,)).keys() == {"loss", "rank", "mrr", "hits@1"}


def test_a_search():
    hits = {"R1000@1": 0.0, "R1000@3": 1.0, "hits@1": 0.0, "hits@3": 1.0}
    assert of_search(2, 1000, top_k=3) == {"mrr@3": 0.5, "found_rank": 2.0, **hits}
    behind = of_search(None, 1000, top_k=10)
    assert behind.pop("mrr@10") == 0.0
    assert behind == {f"{name}@{k}": 0.0 for name in ("R1000", "hits") for k in (1, 5, 10)}


def test_a_batch():
    """Each example by itself. A candidate that it brings twice counts twice in N, and once in the rank."""
    pool = build_inline_pool([["a", "b", "c"], ["c", "a", "a", "d"]], ["b", "d"])
    scores = pool.mask_scores(torch.tensor([[1.0, 0.5, 2.0], [0.0, 3.0, 1.0]]))
    expected = []
    for row, (label, n, rank) in enumerate([(1, 3, 3), (2, 4, 2)]):
        loss = (scores[row].logsumexp(0) - scores[row, label]).item()
        expected.append(of_example(rank, pytest.approx(loss), n, hits_at=(1, 3)))
    assert of_pool(scores, pool, hits_at=(1, 3)) == expected
    without = [{name: value for name, value in metrics.items() if name[0] != "R"} for metrics in expected]
    assert of_pool(scores, pool, has_n=False, hits_at=(1, 3)) == without
    shared = of_pool(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), build_shared_pool(["a", "b"], ["a", "b"]), hits_at=(1,))
    assert [(metrics["rank"], metrics["R2@1"]) for metrics in shared] == [(2.0, 0.0), (1.0, 1.0)]


def test_means_of_examples_from_several_processes():
    first, second = Tally(), Tally()
    first.add([{"mrr": 1.0, "loss": 2.0}, {"mrr": 0.5}])
    second.add([{"mrr": 0.0}])
    first.merge(second.sums)
    first.merge({"seconds": (3.0, 0)})
    first.merge({"seconds": (4.0, 0)})  # a plain sum
    assert first.report() == pytest.approx({"mrr": 0.5, "loss": 2.0, "seconds": 7.0})
    again = Tally()
    again.merge(first.sums)
    assert again.report() == first.report()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_ndcg_is_scikit_learns(data):
    n = data.draw(st.integers(2, 14))
    scores = data.draw(st.lists(st.integers(-50, 50), min_size=n, max_size=n, unique=True))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    actual = float(compute_ndcg(torch.tensor([scores]).float(), torch.tensor([labels]).float()))
    assert actual == pytest.approx(ndcg_score([labels], [scores], k=10), abs=1e-6)


def test_of_several_right_candidates_the_first_one_counts():
    candidates = [["a", "b", "c"], ["d", "e", "f"]]
    pool = build_batch_pool("inline", labels=["a", "e"], candidates=candidates, relevance=[{"a": 2, "c": 1}, None])
    scores = torch.tensor([[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]])
    first, second = of_pool(scores, pool)
    assert (first["rank"], first["hits@1"], second["rank"], second["hits@1"]) == (1, 1, 2, 0)
    p = torch.softmax(scores, 1)
    assert first["loss"] == pytest.approx(-float((p[0, 0] + p[0, 2]).log()))
    assert second["loss"] == pytest.approx(-float(p[1, 1].log()))
    assert first["nDCG@10"] == pytest.approx((1 + 2 / 2) / (2 + 1 / math.log2(3)))
    assert second["nDCG@10"] == pytest.approx(1 / math.log2(3))
    assert select_main_measures(first).keys() >= {"nDCG@10", "MRR", "loss"}


def test_right_candidates_that_all_have_minus_infinity_lose():
    """To the wrong one in the first column, which is not taken for right."""
    pool = build_inline_pool([["w", "a", "b"]], ["a"], [{"a": 1.0, "b": 1.0}])
    (metrics,) = of_pool(torch.tensor([[5.0, -math.inf, -math.inf]]), pool)
    assert metrics["rank"] == 2
