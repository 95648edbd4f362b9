"""Text equality up to case and white space, and candidates that repeat a turn of their context."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["lines_of", "same"]


def same(text: str) -> str:
    """Equal for texts that are the same answer but for case and white space."""
    return " ".join(text.casefold().split())


def lines_of(turns: Iterable[str] | str) -> set[str]:
    """The lines of a context, as `same` gives them: a candidate that is one of them repeats what was said."""
    return {same(line) for turn in ([turns] if isinstance(turns, str) else turns) for line in turn.splitlines()} - {""}
