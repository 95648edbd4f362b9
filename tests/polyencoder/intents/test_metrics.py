"""Accuracy, confusions and probabilities against counts made by hand."""

from __future__ import annotations

import pytest
import torch

from polyencoder.intents import Labelled
from polyencoder.intents.metrics import Confusion, evaluate


def test_counts():
    labels = ["a", "b", "c"]
    examples = [Labelled(f"text {i}", label) for i, label in enumerate("aaabbc")]
    probabilities = torch.tensor(
        [[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.05, 0.9, 0.05], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6]]
    )
    found = evaluate(probabilities, labels, examples)
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.confusions == [Confusion("a", "b", 2, 3, "text 1"), Confusion("b", "a", 1, 2, "text 4")]
    assert [(one.probability, one.share, one.accuracy) for one in found.covered] == [
        (0.5, pytest.approx(5 / 6), pytest.approx(3 / 5)),
        (0.7, pytest.approx(3 / 6), pytest.approx(2 / 3)),
        (0.9, pytest.approx(1 / 6), pytest.approx(0)),
    ]


def test_nothing_is_as_probable_as_that():
    found = evaluate(torch.full((2, 2), 0.5), ["a", "b"], [Labelled("x", "a"), Labelled("y", "b")])
    assert found.covered[1].accuracy is None
    assert found.covered[1].share == 0
