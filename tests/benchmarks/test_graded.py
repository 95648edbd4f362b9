"""The benchmark of graded labels in miniature."""

from __future__ import annotations

import csv

import pytest

from benchmarks.graded import RIGHT, SYSTEMS, WRONG, lists, measure, questions

pytestmark = pytest.mark.slow

WORDS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]


def test_rows_and_lists(backbone_folder, tmp_path):
    with open(tmp_path / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "category"], *([f"my {w} {n} .", w] for w in WORDS for n in range(9))])
    intents = questions(tmp_path / "train.csv")
    made = lists(intents, count=8, right=RIGHT, wrong=WRONG)
    for one in made:
        (word,) = (word for word in WORDS if word in one.text)
        assert len(set(one.choices)) == RIGHT + WRONG
        assert [text for text in one.choices if word in text] == one.right
        assert one.text not in one.choices
    parts = {"train": made, "valid": made[:2], "test": made[:4]}
    rows = list(measure(str(backbone_folder("bert")), parts, tmp_path, updates=1, seed=0))
    assert [row["system"] for row in rows] == ["before training", *(system for system, *_ in SYSTEMS)]
    assert all(0 < row["nDCG@10"] <= 1 for row in rows)
