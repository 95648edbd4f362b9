"""The names of measures, and what sums a report up."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.evaluation.names import (
    format_line,
    format_name,
    format_summary,
    parse_hits_at,
    parse_num_candidates,
    select_main_measures,
)


def test_the_main_measures_and_their_summary():
    report = {"lr": 1e-3, "mrr": 0.78341, "R20@10": 0.9, "R20@5": 0.8, "R20@1": 0.6641, "loss": 0.9249, "id": "x"}
    measures = select_main_measures(report)
    assert list(measures.items()) == [
        ("R20@1", 0.6641), ("R20@5", 0.8), ("R20@10", 0.9), ("MRR", 0.78341), ("loss", 0.9249)
    ]  # fmt: skip
    assert format_summary(measures) == "R20@1 0.664  MRR 0.783  loss 0.925"
    assert format_line(measures) == "R20@1 0.664  R20@5 0.800  R20@10 0.900  MRR 0.783  loss 0.925"


def test_with_several_numbers_of_candidates_or_none_hits_count():
    several = {"R20@1": 1.0, "R19@1": 0.0, "hits@1": 0.9, "hits@5": 1, "mrr@100": 0.5}
    assert select_main_measures(several) == {"hits@1": 0.9, "hits@5": 1, "MRR@100": 0.5}
    part = {"R3@2": 0.0, "hits@2": 0.5, "hits@7": 1.0}  # the other example has two candidates, and no R2@2
    assert select_main_measures(part, hits_at=[2, 7], alike=False) == {"hits@2": 0.5, "hits@7": 1.0}
    assert format_summary(select_main_measures({"hits@1": 0.25, "loss": 2})) == "hits@1 0.25  loss 2"
    assert format_summary(select_main_measures({})) == ""


def test_a_metric_has_the_name_that_the_report_shows():
    """Where examples have different numbers of candidates, no R{N}@1 is of all of them."""
    report = {"R20@1": 0.5, "hits@1": 0.5, "R20@5": 0.75, "hits@5": 0.75, "hits@30": 1.0, "loss": 1.0}
    assert [format_name(name, report) for name in ("hits@1", "hits@5", "hits@30", "loss", "nDCG@10")] == [
        *("R20@1", "R20@5", "hits@30", "loss", "nDCG@10")
    ]
    assert format_name("hits@1", {**report, "R19@1": 0.0}) == format_name("hits@1", {"hits@1": 0.5}) == "hits@1"


def test_the_number_of_candidates_is_in_the_names():
    assert parse_num_candidates(select_main_measures({"R20@1": 0.5, "R20@10": 1.0, "loss": 1.0})) == 20
    assert parse_num_candidates({"hits@1": 0.5, "MRR": 0.5}) is None


def test_hits_at_are_whole_numbers_in_order():
    assert parse_hits_at("10, 1,5,1") == [1, 5, 10]
    for value in ("0,1", "-1", "1,,2", "", "1.5", "ten"):
        with pytest.raises(ConfigError, match="whole numbers from 1 up") as raised:
            parse_hits_at(value)
        assert raised.value.argument == "hits_at"
