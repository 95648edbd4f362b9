"""The progress line: its numbers, and that it gives way to the log."""

from __future__ import annotations

import io
import logging
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.training.callbacks import progress as module
from polyencoder.training.callbacks.progress import ProgressLine
from polyencoder.training.progress import Progress


def test_the_line(run):
    line = ProgressLine(stream=io.StringIO())
    run.step(line, loss=1.0, hit=True)
    run.step(line, loss=3.0, hit=False)
    text = line.format_line(run)
    assert re.fullmatch(r"[\d,]+ examples/s, loss 2, R@1 0.500, lr 5e-05, \d\d:\d\d left", text), text
    line.on_evaluation(run, {})
    assert line.format_line(run) == "lr 5e-05", "nothing is said of what is not known"


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(1, 512)), min_size=2, max_size=20))
def test_the_rate_leaves_out_pauses(batches):
    line, now = ProgressLine(stream=io.StringIO()), 0.0
    progress = Progress()
    run = SimpleNamespace(progress=progress, goal=None, updates=None)

    def step(seconds: float, examples: int) -> None:
        nonlocal now
        now += seconds
        progress.examples += examples
        line.after_step(run, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
        patch.setattr(line, "_next", float("inf"))
        step(0, 10_000)  # how long it took is not known
        line.on_evaluation(run, {})
        step(1000, 10_000)
        for seconds, examples in batches:
            step(seconds, examples)
    seconds, examples = map(sum, zip(*batches, strict=True))
    assert line.compute_rate() == pytest.approx(examples / seconds)


def test_the_line_gives_way_to_the_log(run, monkeypatch):
    """A log line never stands behind the progress line, and nothing of it stays."""
    screen = io.StringIO()
    monkeypatch.setattr(module, "EVERY", 0)
    handler, log = logging.StreamHandler(screen), logging.Logger("a log")
    log.addHandler(handler)
    line = ProgressLine(handlers=[handler], stream=screen)
    run.progress.examples = 492
    run.step(line, loss=2.0)
    log.warning("a line of the log")
    run.step(line, loss=1.0)
    line.on_end(run)
    assert " 50%|" in screen.getvalue()
    before, _, after = screen.getvalue().partition("a line of the log")
    assert before.rpartition("\r")[2].strip() == "", "cleared before the log line"
    assert "loss 1.5" in after
    assert after.rpartition("\r")[2].strip() == ""
    assert not handler.filters
