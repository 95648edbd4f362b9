"""Runs that a callback ends: the model is evaluated and kept all the same, unless nothing was trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyencoder.errors import TrainingError
from polyencoder.training import TrainSettings, train_ranker
from tests.polyencoder.training.runs import EXAMPLES, VALID, Stop


@pytest.fixture
def settings(backbone_folder, tmp_path):
    return TrainSettings(
        backbone=str(backbone_folder("bert")),
        architecture="bi",
        train="train",
        valid="valid",
        out=str(tmp_path / "out"),
        text_truncate=24,
        label_truncate=16,
        batch_size=2,
        device="cpu",
    )


def test_a_run_that_a_callback_ends_before_an_evaluation(settings):
    report = train_ranker(settings, train=EXAMPLES, valid=VALID, callbacks=[Stop(after=1)])
    assert (report.updates, report.stopped) == (1, "enough")
    assert report.trained["hits@1"] >= 0


def test_a_run_that_a_callback_ends_before_an_update(settings):
    waits = replace(settings, training=replace(settings.training, accumulate=2))
    with pytest.raises(TrainingError, match=r"nothing was trained: .* before its first update \(enough\)"):
        train_ranker(waits, train=EXAMPLES, valid=VALID, callbacks=[Stop(after=1)])
