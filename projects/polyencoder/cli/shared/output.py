"""What a command says: lines on standard output and standard error."""

from __future__ import annotations

import sys

__all__ = ["say", "shows_bars"]


def say(line: str, *, err: bool = False) -> None:
    """Write a line, to standard error with `err`, and flush it: another process may wait for it."""
    print(line, file=sys.stderr if err else sys.stdout, flush=True)


def shows_bars(progress: bool | None) -> bool:
    """Whether bars are shown, which would fill a log file with every state that they had."""
    return sys.stderr.isatty() if progress is None else progress
