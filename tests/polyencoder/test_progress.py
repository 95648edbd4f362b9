"""Progress of long commands: lines where standard error is no terminal."""

from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace

import pytest

from polyencoder import progress
from polyencoder.progress import create_progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass with each item."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0], strftime=time.strftime))
    return now


def test_a_line_every_ten_seconds_and_at_the_end(clock, capsys):
    for _ in create_progress(range(50), step="encoding", unit="texts", show=None, total=50):
        clock[0] += 0.5
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "encoding:  40%, 20 of 50 texts, 2/s, 0:15 left",
        "encoding:  80%, 40 of 50 texts, 2/s, 0:05 left",
        "encoding: 100%, 50 of 50 texts, 2/s",
    ]


def test_what_is_soon_over_writes_only_if_asked(clock, capsys):
    for show in (None, False):
        with create_progress(step="checking", unit="B", show=show) as bar:
            bar.update(1_000)
        assert capsys.readouterr().err == ""
    with create_progress(step="checking", unit="B", show=True, done=500) as bar:
        bar.update(1_000)
        assert bar.n == 1_500
    assert "checking: 1,500 B" in capsys.readouterr().err


def test_what_is_not_shown_takes_no_lock_of_tqdm(monkeypatch):
    """Forked processes share the lock: a process killed meanwhile would leave it locked."""
    monkeypatch.setattr("tqdm.tqdm.__new__", lambda *args, **kwargs: pytest.fail("a bar was made"))
    assert list(create_progress("abc", step="reading", unit="lines", show=False)) == [*"abc"]


def test_a_bar_in_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    assert list(create_progress("abc", step="reading", unit="lines", show=None, total=3)) == [*"abc"]
    assert "reading: 100%" in terminal.getvalue()
    assert "\r" in terminal.getvalue()
