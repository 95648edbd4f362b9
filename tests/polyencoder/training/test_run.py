"""Runs that a callback ends: the model is evaluated and kept, unless nothing was trained. Runs too short to mine."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from polyencoder.errors import TrainingError
from polyencoder.training import Example, TrainSettings, train_ranker
from polyencoder.training.callbacks import Callback
from tests.polyencoder.training.runs import EXAMPLES, VALID, Stop

pytestmark = pytest.mark.slow


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


class Evaluated(Callback):
    """Remembers after how many examples the model was evaluated."""

    def __init__(self) -> None:
        self.after: list[int] = []

    def on_evaluation(self, run, report) -> None:
        self.after.append(run.progress.examples)


@pytest.mark.parametrize(("evaluations", "expected"), [(2, [4, 8, 12, 16]), (0.5, [16])])
def test_evaluations_are_those_of_an_epoch(settings, evaluations, expected):
    heard = Evaluated()
    changed = settings.changed(evaluations=evaluations, epochs=2, patience=None)
    train_ranker(changed, train=EXAMPLES, valid=VALID, callbacks=[heard])
    assert heard.after == expected


@pytest.mark.parametrize(("every", "warned"), [(5, False), (6, True)])
def test_a_run_that_ends_before_it_mines_hard_negatives_has_a_warning(settings, caplog, every, warned):
    caplog.set_level(logging.INFO, "polyencoder")
    mining = settings.changed(hard_negatives=1, hard_negatives_every=every, batch_size=4, patience=None)
    things = ("dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother")
    train_ranker(mining, train=[Example([f"{one} ?"], f"my {one} .") for one in things], valid=VALID)
    assert ("no hard negatives will be mined" in caplog.text) == warned
    assert ("hard negatives: encoded" in caplog.text) == (not warned)
