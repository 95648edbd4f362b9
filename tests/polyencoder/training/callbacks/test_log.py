"""The log: its speed counts the steps alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from polyencoder.training.callbacks import log as module
from polyencoder.training.callbacks.log import Log, format_rate


def test_the_speed_is_that_of_the_steps_alone(run, monkeypatch, caplog):
    """Neither the evaluation before training counts, which other callbacks do at the start, nor one between steps."""
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    run.updates.schedule = SimpleNamespace(expected_updates=None, warmup_updates=0)
    caplog.set_level(logging.INFO)
    log = Log(every_seconds=4.0)
    log.on_start(run)
    now += 1000.0  # of the model before training
    log.before_step(run, None)
    now += 4.0
    run.step(log)
    assert "2 examples/s" in caplog.messages[-1]
    log.before_step(run, None)
    now += 1.0
    run.step(log)
    now += 1000.0
    log.on_evaluation(run, {"hits@1": 0.5, "loss": 1.0})
    assert "8 examples/s" in caplog.messages[-2]
    now += 1000.0  # in which the model is saved
    log.before_step(run, None)
    now += 2.0
    run.step(log)
    log.on_evaluation(run, {"hits@1": 0.5, "loss": 1.0})
    assert "4 examples/s" in caplog.messages[-2]


def test_the_speed_is_that_of_all_processes_together(run, monkeypatch, caplog):
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    run.updates.schedule = SimpleNamespace(expected_updates=None, warmup_updates=0)
    run.progress.examples = 160  # of a run that is resumed
    caplog.set_level(logging.INFO)
    log = Log(every_seconds=4.0)
    log.on_start(run)
    log.before_step(run, None)
    now += 4.0
    run.step(log, processes=4)
    assert "8 examples/s, 1:41 left" in caplog.messages[-1]  # 808 of 1,000 examples


@pytest.mark.parametrize("warmup", [50, 51])
def test_the_expected_updates_are_told_once_and_whether_most_are_warm_up(run, caplog, warmup):
    run.updates.schedule = SimpleNamespace(expected_updates=100, warmup_updates=warmup)
    caplog.set_level(logging.INFO)
    log = Log()
    log.on_start(run)
    for expected in (100, 100, 120):
        run.updates.schedule.expected_updates = expected
        log.before_step(run, None)
        run.step(log)
        log.on_evaluation(run, {"hits@1": 0.5, "loss": 1.0})
    messages = [message for message in caplog.messages if message.startswith("expected")]
    assert messages == [f"expected: {n} updates, {warmup} of them warm-up" for n in (100, 120)]
    assert [record.levelname for record in caplog.records].count("WARNING") == (warmup > 50)


def test_a_rate_below_one_is_not_zero():
    rates = [format_rate(rate) for rate in (1184.2, 2.4, 0.31, 0.004)]
    assert rates == ["1,184 examples/s", "2 examples/s", "0.3 examples/s", "0.004 examples/s"]


CODE = """
import logging
from polyencoder.training.callbacks.log import logged_by_default
{}
with logged_by_default(show=True):
    logging.getLogger("polyencoder.training.run").info("a line")
"""


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize(
    ("begin", "is_logged"), [("", True), ("logging.getLogger().addHandler(logging.NullHandler())", False)]
)
def test_it_is_shown_unless_the_program_has_its_own(begin, is_logged):
    done = subprocess.run([sys.executable, "-c", CODE.format(begin)], capture_output=True, text=True, check=True)
    assert done.stderr.rstrip().endswith("a line") == is_logged
