"""Experiment trackers, each read back by its own package: one run, though it was killed and resumed.

wandb is not in requirements.txt: `pip install wandb` to run its tests.
"""

from __future__ import annotations

import struct
import sys

import pytest
import torch

from polyencoder import Ranker
from polyencoder.errors import ConfigError, TrainingError
from polyencoder.training import Example, Trainer, TrainingConfig, TrainSettings, train_ranker
from polyencoder.training.callbacks import Callback
from polyencoder.training.callbacks import tracking as module
from polyencoder.training.callbacks.curve import LearningCurve
from polyencoder.training.callbacks.tracking import Tracker, Tracking, check_trackers

TRACKERS = ("tensorboard", "wandb")
FIGURES = {"train/loss": [(n, float(n)) for n in range(1, 7)], "valid/R20@1": [(4, 0.25), (6, 0.5)]}


def of_tensorboard(folder):
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert events.Tags()["tensors"] == ["settings/text_summary"]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in FIGURES}


def of_wandb(folder):
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # as the end of a process: until then the last rows may not be in the file
    parts = sorted(folder.glob("wandb/offline-run-*"))
    assert len({path.name.rpartition("-")[2] for path in parts}) == 1, "of one run"
    points = {name: {} for name in FIGURES}
    for part in parts:
        (file,) = part.glob("*.wandb")
        for data in records(file.read_bytes()):
            items = Record.FromString(data).history.item
            row = {item.key or item.nested_key[0]: float(item.value_json) for item in items}
            for name in {*FIGURES} & {*row}:
                points[name][int(row["_step"])] = row[name]
    return {name: sorted(values.items()) for name, values in points.items()}


def records(data, *, block=1 << 15, header=7):
    """The records of a LevelDB log, which wandb writes after a header of its own."""
    at, whole = header, b""
    while at + header <= len(data):
        if block - at % block < header:  # no room for another one
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)  # after a checksum
        whole += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_resumed_run_is_one_run_of_the_tracker(tracker, run, tmp_path):
    pytest.importorskip(tracker)

    def begin():
        curve = LearningCurve(tmp_path / "curve.png", title="a run")
        tracking = Tracking([tracker], curve, folder=tmp_path, name="my run", options={"seed": 3, "valid": None})
        return curve, tracking

    def step(parts):
        run.step(parts[0], loss=float(run.updates.count + 1))
        parts[1].after_step(run, None)

    killed = begin()
    killed[1].on_start(run)
    for _ in range(4):
        step(killed)
    killed[1].on_evaluation(run, {"R20@1": 0.25, "hits@1": 0.25, "exs": 8})
    states = [part.state_dict() for part in killed]
    points = [*states[0]["points"]["training"]]
    step(killed)  # lost: the checkpoint is older
    if tracker != "tensorboard":
        killed[1].on_end(run)  # else the tracker's process would end it

    resumed = begin()
    states[0]["points"]["training"] = points[:4]
    for part, state in zip(resumed, states, strict=True):
        part.load_state_dict(state)
    run.updates.count = 4
    resumed[1].on_start(run)
    step(resumed)
    step(resumed)
    resumed[1].on_evaluation(run, {"R20@1": 0.5, "hits@1": 0.5})
    resumed[1].on_end(run)
    assert globals()[f"of_{tracker}"](tmp_path) == FIGURES


class Ended(Callback):
    """Notes how a run ended."""

    how: str | None = None

    def on_end(self, run):
        self.how = "ended"

    def on_failure(self, run):
        self.how = "failed"


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_that_diverges_is_closed_as_failed(tracker, tmp_path, monkeypatch, make_ranker):
    pytest.importorskip(tracker)
    curve, ended = LearningCurve(tmp_path / "curve.png", title="a run"), Ended()
    tracking = Tracking([tracker], curve, folder=tmp_path, name="my run", options={"seed": 3})
    ranker = make_ranker("bi")
    examples = [Example([f"say {word}"], word) for word in ("yes", "no", "maybe", "never")]
    config = TrainingConfig(batch_size=2, epochs=20, max_nonfinite=1)
    trainer = Trainer(ranker, config, train=examples, callbacks=[curve, tracking, ended])
    with torch.no_grad():
        next(ranker.model.parameters()).fill_(torch.inf)
    closed = []
    close = Tracker.close
    monkeypatch.setattr(Tracker, "close", lambda self, **how: (closed.append(how), close(self, **how)))
    with pytest.raises(TrainingError, match="not finite|loss is"):
        trainer.fit()
    assert (ended.how, closed) == ("failed", [{"failed": True}])


class BadEnd(Callback):
    """Fails when the run has ended, and again when it has failed."""

    def on_end(self, run):
        raise ValueError("my own error")

    on_failure = on_end


@pytest.mark.slow
def test_a_callback_that_fails_at_the_end_fails_the_run_which_keeps_its_model(
    tmp_path, backbone_folder, monkeypatch, caplog
):
    closed: list[bool] = []

    class Recorded:
        def __init__(self, *_, **__) -> None:
            self.id = "1"

        def log(self, *_, **__) -> None:
            assert len(closed) < 2, "no step is repeated"

        def close(self, *, failed: bool = False) -> None:
            closed.append(failed)

    monkeypatch.setattr(module, "Tracker", Recorded)
    rows = [{"context": f"your {thing} ?", "response": f"my {thing} ."} for thing in ("dogs", "cat", "math", "school")]
    settings = TrainSettings(
        backbone=str(backbone_folder("bert")),
        architecture="bi",
        train="rows",
        valid="rows",
        out=str(tmp_path / "out"),
        text_truncate=24,
        label_truncate=16,
        batch_size=2,
        epochs=1.0,
        num_negatives=3,
        report_to=("tensorboard",),
        device="cpu",
    )

    def train(*callbacks: Callback):
        return train_ranker(settings, train=rows, valid=rows, callbacks=callbacks)

    ended = Ended()
    with pytest.raises(ValueError, match="my own error"):
        train(BadEnd(), ended)
    assert (closed, ended.how) == ([True], "failed")
    assert "BadEnd failed after the error of the run: my own error" in caplog.text
    assert Ranker.from_pretrained(tmp_path / "out", device="cpu").rank("hi", ["yes", "no"])
    report = train()  # ends the run
    assert (report.updates, report.resumed, closed) == (2, True, [True, False])


@pytest.fixture
def begin(tmp_path):
    def make():
        curve = LearningCurve(tmp_path / "curve.png", title="a run")
        return Tracking(["tensorboard"], curve, folder=tmp_path, name="my run", options={})

    return make


def test_figures_of_a_run_that_was_killed_before_its_first_checkpoint_are_replaced(begin, run, tmp_path):
    for losses in ([9.0, 9.0, 9.0], [1.0, 2.0]):
        run.updates.count, tracking = 0, begin()
        tracking.on_start(run)
        for count, loss in enumerate(losses, 1):
            run.updates.count = count
            tracking.on_evaluation(run, {"R20@1": 0.5 + loss / 100, "loss": loss})
        tracking.on_end(run)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("valid/loss")] == [(1, 1.0), (2, 2.0)]


def test_a_tracker_that_fails_ends_a_run_only_at_its_start(begin, run, tmp_path, monkeypatch, caplog):
    tracking = begin()
    tracking.on_start(run)
    monkeypatch.setattr(Tracker, "log", lambda *_, **__: 1 / 0)
    for _ in range(2):
        tracking.on_evaluation(run, {"R20@1": 0.5})
    tracking.on_end(run)
    assert [record.getMessage() for record in caplog.records] == [
        "tensorboard: the rest of the run is not reported there (division by zero)"
    ]
    monkeypatch.setattr(module, "Tracker", lambda *_, **__: 1 / 0)
    with pytest.raises(TrainingError, match=r"tensorboard: cannot be reported to \(division by zero\)"):
        begin().on_start(run)


def test_a_tracker_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'parlai-polyencoder\[wandb\]'"):
        check_trackers(["wandb"])
