"""What was removed is answered in one line that says what to use in its place."""

from __future__ import annotations

import pytest

from polyencoder.cli import main, removed
from polyencoder.errors import UsageError


def test_a_removed_command_names_its_replacement(monkeypatch):
    monkeypatch.setitem(removed.COMMANDS, "juggle", "examples/juggle.py does it")
    with pytest.raises(UsageError, match=r"juggle was removed: examples/juggle\.py"):
        main.parse(["juggle", "--balls", "3"])


def test_a_removed_flag_names_its_replacement(monkeypatch):
    monkeypatch.setitem(removed.FLAGS, "--juggle", "use --num-negatives")
    with pytest.raises(UsageError, match="--juggle was removed: use --num-negatives"):
        main.parse(["train", "--juggle=3"])


def test_nothing_that_was_removed_exists():
    assert not removed.COMMANDS.keys() & main.COMMANDS.keys()
    flags = {flag for name in main.COMMANDS for flag in main.flags_of(name).values()}
    assert not removed.FLAGS.keys() & flags
