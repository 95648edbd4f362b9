"""`Example`: a context, its right responses and candidates, in every loop and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from polyencoder.errors import InputError

_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # of float32, in which losses are computed


@dataclass(frozen=True, slots=True)
class Example:
    """A context, the right response and optionally candidates, which include it.

    turns: of the context, oldest first. label: the response; of several right ones the best, the first of equals.
    where: its file and line, for error messages. labels: a number above 0 for each right text, higher for a better
    one; all others have 0. None for the usual case, one right response with the label 1.

    Raises:
        InputError: `turns` or `candidates` is one text; `labels` are not finite numbers above 0 that float32 holds, or
            `label` is not one of the best of them.
    """

    turns: Sequence[str]
    label: str
    candidates: Sequence[str] | None = None
    where: str = field(default="", compare=False, repr=False)
    labels: Mapping[str, float] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, texts in (("turns", self.turns), ("candidates", self.candidates)):
            if isinstance(texts, str):  # a sequence, of characters
                raise InputError(f"{name} is one text, {texts!r:.60}; give a list of texts", argument=name)
        if self.labels is None:
            return
        for text, number in self.labels.items():
            if not _check_label(f"the label of {text!r:.60}", number):
                raise InputError(f"the label of {text!r:.60} is 0: leave out wrong texts", argument="labels")
        if self.label not in self.labels or self.labels[self.label] < max(self.labels.values()):
            raise InputError(f"{self.label!r:.60} is not the text with the highest of the labels", argument="label")
        if dict(self.labels) == {self.label: 1}:
            object.__setattr__(self, "labels", None)

    @classmethod
    def graded(
        cls, turns: Sequence[str], candidates: Sequence[str], labels: Iterable[object], *, where: str = ""
    ) -> Example:
        """An example of candidates with a number each: 0 for a wrong one, more for a better one.

        Raises:
            InputError: `labels` are not one finite number of 0 or more, which float32 holds, for each candidate, all
                are 0, or a candidate that occurs twice has two different ones.
        """
        numbers = list(labels)
        if len(numbers) != len(candidates):
            raise InputError(f"has {len(numbers)} labels for {len(candidates)} candidates", argument="labels")
        values: dict[str, float] = {}
        for position, (text, number) in enumerate(zip(candidates, numbers, strict=True)):
            value = _check_label(f"label {position}", number)
            if values.setdefault(text, value) != value:
                raise InputError(
                    f"the candidate {text!r:.60} occurs twice, with the labels {values[text]:g} and {value:g}",
                    argument="labels",
                )
        right = {text: value for text, value in values.items() if value > 0}
        if not right:
            raise InputError("all labels are 0: no candidate is right", argument="labels")
        return cls(turns, max(right, key=right.__getitem__), candidates, where, right)

    @property
    def text(self) -> str:
        """The turns as lines of one text."""
        return "\n".join(self.turns)

    @property
    def choices(self) -> Sequence[str]:
        """The candidates; empty if the data has none."""
        return self.candidates or ()

    @property
    def right(self) -> Sequence[str]:
        """The texts with a label above 0."""
        return [self.label] if self.labels is None else list(self.labels)


def _check_label(name: str, number: Any) -> float:
    """Checks that a label is 0 or a number that float32 holds. InputError that names it."""
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if not is_number or not 0 <= number < float("inf"):
        raise InputError(f"{name} is {number!r:.60}; give a finite number of 0 or more", argument="labels")
    if number and not _SMALLEST <= number <= _LARGEST:
        size = "large" if number > 1 else "small"
        raise InputError(
            f"{name} is {number!s:.60}, too {size} for float32; give numbers from {_SMALLEST:.3g} to {_LARGEST:.3g}",
            argument="labels",
        )
    return float(number)
