"""`Example`: a context, its response (the label) and candidates, in every loop and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyencoder.errors import InputError

__all__ = ["Example"]


@dataclass(frozen=True, slots=True)
class Example:
    """A context, the right response and optionally candidates, which include it.

    turns: of the context, oldest first. label: the response. where: its file and line, for error messages.

    Raises:
        InputError: `turns` or `candidates` is one text.
    """

    turns: Sequence[str]
    label: str
    candidates: Sequence[str] | None = None
    where: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, texts in (("turns", self.turns), ("candidates", self.candidates)):
            if isinstance(texts, str):  # a sequence, of characters
                raise InputError(f"{name} is one text, {texts!r:.60}; give a list of texts", argument=name)

    @property
    def text(self) -> str:
        """The turns as lines of one text."""
        return "\n".join(self.turns)

    @property
    def choices(self) -> Sequence[str]:
        """The candidates; empty if the data has none."""
        return self.candidates or ()
