"""What a model reaches that ignores contexts, and whether a report is better."""

from __future__ import annotations

import pytest

from polyencoder.pretraining.chance import Chance


def report(perplexity: float, accuracy: float) -> dict[str, float]:
    return {"perplexity": perplexity, "next_accuracy": accuracy}


def test_both_are_beaten_or_named():
    chance = Chance(perplexity=100.0, next_accuracy=0.5, examples=100)  # two deviations are a tenth
    assert chance.not_beaten_by(report(99.0, 0.61)) == []
    (words,) = chance.not_beaten_by(report(100.0, 0.61))
    assert words == "masked words have a perplexity of 100, and 100 by the frequencies of words alone"
    (following,) = chance.not_beaten_by(report(99.0, 0.59))
    assert following == "next utterances are right in 0.590 of the cases, and in 0.500 by chance"


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_without_next_utterances_words_alone_count(accuracy):
    assert Chance(perplexity=100.0, next_accuracy=0.0, examples=0).not_beaten_by(report(50.0, accuracy)) == []
