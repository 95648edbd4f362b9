"""Runs that a callback or time ends, what they say of data that nothing reads, and what they leave for later ones."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from itertools import islice, permutations

import pytest

from polyencoder import Ranker
from polyencoder.calibration import Calibration
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.errors import CheckpointError, InputError, TrainingError
from polyencoder.export.card import set_calibration
from polyencoder.training import Example, TrainSettings, train_ranker
from polyencoder.training.callbacks import Callback
from tests.encoders import SENTENCES
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
    train_ranker(mining, train=[Example([f"{thing} ?"], f"my {thing} .") for thing in things], valid=VALID)
    assert caplog.text.count("no hard negatives are mined") == warned
    assert ("hard negatives: encoded" in caplog.text) == (not warned)


def test_a_run_that_time_ends_before_it_mines_hard_negatives_has_a_warning(settings, caplog):
    train_ranker(settings.changed(hard_negatives=1, epochs=1000, max_seconds=1e-6), train=EXAMPLES, valid=VALID)
    assert caplog.text.count("no hard negatives are mined") == 1


@pytest.mark.parametrize(("candidates", "warned"), [("batch", True), ("inline", False)])
def test_candidates_that_are_not_read_have_a_warning(settings, caplog, candidates, warned):
    changed = settings.changed(candidates=candidates, num_negatives=3, max_updates=1, epochs=None)
    train_ranker(changed, train=[*VALID[:3], *EXAMPLES[3:]], valid=VALID)
    assert ("candidates of 3 training pairs, such as mined negatives, are not read" in caplog.text) == warned


def test_another_teacher_is_no_resumption(settings, make_ranker, tmp_path):
    taught = settings.changed(teacher=str(tmp_path / "teacher"))

    def replace_teacher(seed):
        shutil.rmtree(tmp_path / "teacher", ignore_errors=True)
        make_ranker("cross", seed=seed).save_pretrained(tmp_path / "teacher")

    replace_teacher(1)
    assert train_ranker(taught, train=EXAMPLES, valid=VALID, callbacks=[Stop(after=2)]).updates == 2
    replace_teacher(2)
    with pytest.raises(CheckpointError, match="was begun with teacher's weights"):
        train_ranker(taught, train=EXAMPLES, valid=VALID)
    replace_teacher(1)
    assert train_ranker(taught, train=EXAMPLES, valid=VALID).resumed


def test_what_was_trained_on_calibrates_nothing(settings, tmp_path, monkeypatch):
    """Known from the records of the run and of the one that it began with, in any working folder; held-out pairs do."""
    words = sorted({word for text in SENTENCES for word in text.split()})
    pairs = [{"context": [f"{a} {b} ?"], "response": f"{b} {a} ."} for a, b in islice(permutations(words, 2), 150)]
    others = [{**pair, "context": ["well", *pair["context"]]} for pair in pairs]
    for name, rows in (("train", pairs), ("others", others)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    first = settings.changed(train="train.jsonl", valid=None, out="first", max_updates=1, epochs=None)
    train_ranker(first)
    train_ranker(first.changed(backbone=None, init="first", train="others.jsonl", out="second"))
    monkeypatch.chdir("/")

    def calibrate(name, rows):
        try:
            Ranker.from_pretrained(tmp_path / name, device="cpu").calibrate(rows)
        except InputError as error:
            return str(error)
        return ""

    assert "trained on 50 of the 50 examples, of train.jsonl" in calibrate("first", pairs[:50])
    assert "trained on 50 of the 50 examples, of train.jsonl" in calibrate("second", pairs[:50])
    assert "trained on 50 of the 50 examples, of others.jsonl" in calibrate("second", others[:50])
    for name, rows in (("first", pairs[-15:]), ("first", others), ("second", others[-15:])):
        assert "trained on" not in calibrate(name, rows)


def test_a_finished_run_that_is_started_again_keeps_its_calibration_on_the_card(settings, tmp_path):
    train_ranker(settings.changed(max_updates=1, epochs=None), train=EXAMPLES, valid=VALID)
    ranker = Ranker.from_pretrained(settings.data.out, device="cpu")
    card = tmp_path / "out" / "README.md"
    card.write_text(set_calibration(card.read_text(), "Temperature 1.", pictured=False))
    calibrated = card.read_text()
    fingerprint = compute_model_fingerprint(ranker.model, ranker.text)
    Calibration(temperature=1.0, none=0.0, fingerprint=fingerprint).save(settings.data.out)
    assert train_ranker(settings.changed(max_updates=1, epochs=None), train=EXAMPLES, valid=VALID).resumed
    assert card.read_text() == calibrated
