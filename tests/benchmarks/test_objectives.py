"""The benchmark of the objectives in miniature."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.objectives import MEASURE, OBJECTIVES, measure, read_grades, statistics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

WORDS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother"]


def test_the_interval_is_that_of_all_seeds():
    """One seed finds nothing, the other everything: each question has 1/2, in every bootstrap sample."""
    values = np.stack([np.zeros(9), np.ones(9)])
    assert statistics(values, None) == {MEASURE: 0.5, "by_seed": [0.0, 1.0], "95%": [0.5, 0.5], "p": None}
    assert statistics(values, values[:1])["p"] < 0.02, "against 0 for each question"
    assert statistics(values, values)["p"] == 1


def test_all_objectives_are_measured_on_all_questions(backbone_folder, tmp_path):
    documents = [f".I {n}\n.T\nabout\n.W\nthe {word} ,\nhere {n} .\n" for n, word in enumerate(WORDS * 2, 1)]
    (tmp_path / "cran.all.1400").write_text("".join(documents))
    (tmp_path / "cran.qry").write_text("".join(f".I {3 * n:03}\n.W\nwhere ? {word}\n" for n, word in enumerate(WORDS)))
    judged = "".join(f"{n} {n} 1\n{n} {n + 8} 4\n" for n in range(1, 9))
    (tmp_path / "cranqrel").write_text(f"{judged}1 9 3\n1 99 1\n")
    assert read_grades(tmp_path / "cranqrel", {"1": "", "9": ""})["1"] == {"1": 4, "9": 2}
    rows = measure(str(backbone_folder("bert")), tmp_path, updates=1, seeds=1, learning_rate=1e-3)
    assert [row["objective"] for row in rows] == ["untrained", *OBJECTIVES]
    for row in rows:
        low, high = row["95%"]
        assert 0 <= low <= row[MEASURE] <= high <= 1
    assert [row["p"] is None for row in rows] == [True, True, *[False] * 5]
