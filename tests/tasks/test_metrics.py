"""The cheap metrics of ranking tasks give ParlAI's own numbers, where they give any."""

from __future__ import annotations

import pytest
from parlai.core.message import Message
from parlai.core.metrics import AverageMetric, TeacherMetrics
from parlai.tasks.selection.metrics import RankingMetrics

REPLIES = [
    {"text": "yes .", "text_candidates": ["yes .", "no ."]},
    {"text": "Yes", "text_candidates": ["Yes", "no ."]},  # right, once normalised
    {"text": "no .", "text_candidates": ["no .", "maybe .", "yes ."]},
    {"text": "no .", "text_candidates": ["no .", "yes .", "yes !"]},
    {"text": "no .", "text_candidates": [f"no {n}" for n in range(99)] + ["yes ."]},
    {"text": "no .", "text_candidates": [f"no {n}" for n in range(100)] + ["yes ."]},
    {"text": "no .", "text_candidates": []},
    {"text": "no ."},
    {},
    {"text": "no .", "metrics": {"rank": AverageMetric(3), "R20@1": AverageMetric(0), "mrr": None}},
]


@pytest.mark.parametrize("reply", REPLIES)
def test_equal_to_parlai(reply):
    ours, theirs = RankingMetrics(), TeacherMetrics()
    for metrics in (ours, theirs):
        metrics.evaluate_response(Message(reply), ["yes .", "sure ."])
    expected = {
        name: metric.value()
        for name, metric in theirs.report().items()
        if name not in ("f1", "precision", "recall", "bleu-4")
    }
    assert {name: metric.value() for name, metric in ours.report().items()} == expected


def test_teacher_uses_them_unless_asked_for_more(make_teacher):
    assert isinstance(make_teacher("selection:sample").metrics, RankingMetrics)
    assert not isinstance(make_teacher("selection:sample", metrics="all").metrics, RankingMetrics)


def test_clones_add_to_one_report(make_teacher):
    teacher = make_teacher("selection:sample")
    for clone in (teacher.clone(), teacher.clone()):
        label = clone.act()["eval_labels"][0]
        clone.observe(Message({"text": label, "text_candidates": [label], "metrics": {"rank": AverageMetric(1)}}))
    report = {name: metric.value() for name, metric in teacher.report().items()}
    assert report == {"exs": 2, "accuracy": 1, "hits@1": 1, "hits@5": 1, "hits@10": 1, "hits@100": 1, "rank": 1}
