"""Ranks against a naive sort; the metrics that the agents report."""

from __future__ import annotations

import pytest
import torch
from parlai.agents.ranker.dialogue.ranking import convert_metrics, rank_pool
from parlai.utils.misc import nice_report

from polyencoder.data.pool import build_inline_pool
from polyencoder.evaluation import of_example

MODELS = ["biencoder", "polyencoder", "crossencoder"]


def test_the_right_candidate_is_listed_behind_those_with_its_score():
    pool = build_inline_pool([["a", "b", "c"], ["a", "b", "c"]], ["a", "b"])
    rankings = rank_pool(torch.tensor([[1.0, 1.0, 2.0], [0.0, 0.0, 0.0]]), pool, top_k=3)
    assert [[text for text, _ in ranking] for ranking in rankings] == [["c", "b", "a"], ["a", "c", "b"]]


def test_metrics_of_an_example():
    metrics = convert_metrics(of_example(3, 0.25, 20, hits_at=[1, 2, 3, 10]))
    values = {name: metric.value() for name, metric in metrics.items()}
    recall = {"R20@1": 0, "R20@2": 0, "R20@3": 1, "R20@10": 1}
    hits = {"hits@2": 0, "hits@3": 1}  # 1 and 10 are counted by ParlAI's teacher
    assert values == {"loss": 0.25, "rank": 3, "mrr": pytest.approx(1 / 3), **recall, **hits}


def test_recall_among_as_many_candidates_as_k_is_left_out():
    metrics = convert_metrics(of_example(1, 0.0, 2, hits_at=[1, 2, 5]))
    assert [name for name in metrics if name.startswith("R")] == ["R2@1"]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_hits_at_any_k_agree_with_the_ranks(model, trained, make_agent, respond, labels):
    agent = make_agent(model, model_file=trained(model)[0], datatype="valid", hits_at="2,3,1")
    turns = [{"text": f"and {x}", "eval_labels": [x], "label_candidates": labels} for x in labels]
    for reply, label in zip(respond(agent, *turns), labels, strict=True):
        rank = reply["text_candidates"].index(label) + 1
        values = {name: metric.value() for name, metric in reply["metrics"].items()}
        del values["loss"]
        recall = {f"R8@{k}": rank <= k for k in (1, 2, 3)}
        hits = {f"hits@{k}": rank <= k for k in (2, 3)}
        assert values == {"rank": rank, "mrr": pytest.approx(1 / rank), **recall, **hits}


def test_no_recall_at_k_of_n_where_n_is_the_batchs(make_agent, respond):
    """With the labels of a batch as candidates, N would differ for the last batch and for equal labels."""
    turns = [{"text": text, "eval_labels": [f"{text} too"]} for text in ("hello", "bye", "well")]
    replies = respond(make_agent("biencoder", eval_candidates="batch", hits_at="1,2"), *turns)
    assert all(set(reply["metrics"]) == {"loss", "rank", "mrr", "hits@2"} for reply in replies)


def test_parlai_shows_each_metric_as_a_column():
    """ParlAI takes the text before a slash for a task; here there are two."""
    metrics = convert_metrics(of_example(1, 0.5, 20, hits_at=[1, 5]))
    report = {f"{task}/{name}": metric for task in ("a", "b") for name, metric in metrics.items()} | metrics
    table = nice_report(report)
    heading, *rows = table.splitlines()
    assert heading.split() == ["R20@1", "R20@5", "loss", "mrr", "rank"]
    assert sorted(row.split()[0] for row in rows) == ["a", "all", "b"]
