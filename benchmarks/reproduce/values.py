"""Numbers of papers and of runs: a mean, optionally with a standard deviation."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_VALUE = re.compile(r"(?P<inferred>≈\s*)?(?P<mean>\d[\d,]*(?:\.\d+)?)(?:\s*±\s*(?P<deviation>\d+(?:\.\d+)?))?")
_INFERRED = 3  # digits that are shown of a number that was not measured


@dataclass(frozen=True)
class Value:
    """A number, or the mean of several."""

    mean: float
    deviation: float | None = None
    """Standard deviation over seeds; None if unknown."""
    digits: int = 1
    """Decimals shown."""
    count: int | None = None
    """Number of seeds; None for a paper's number."""
    inferred: bool = False
    """Extrapolated from another number, not measured; shown with ≈ and rounded."""

    def __str__(self) -> str:
        mean = float(f"{self.mean:.{_INFERRED}g}") if self.inferred else self.mean
        text = f"{mean:,.{self.digits}f}"
        if self.deviation is not None:
            text += f" ± {self.deviation:.{self.digits}f}"
        return f"≈ {text}" if self.inferred else text

    def is_near(self, other: Value, *, tolerance: float) -> bool:
        """Whether both are equal within the tolerance plus half a unit of the other's last digit."""
        return abs(self.mean - other.mean) <= tolerance + 0.5 * 10**-other.digits


def read_value(text: str | int | float) -> Value:
    """Parse `83.3 ± 0.2`, `131,438`, `≈ 2,200,000` or a number of YAML.

    Raises:
        ValueError: another format.
    """
    match = _VALUE.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a number, with or without a deviation, such as 83.3 ± 0.2")
    mean, deviation = match["mean"], match["deviation"]
    return Value(
        float(mean.replace(",", "")),
        None if deviation is None else float(deviation),
        digits=len(mean.partition(".")[2]),
        inferred=match["inferred"] is not None,
    )


def compute_mean(numbers: Sequence[float], *, digits: int) -> Value:
    """Mean and sample standard deviation (n - 1) of one or more numbers; a single number has no deviation.

    Raises:
        ValueError: no numbers, or one is not finite.
    """
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"there is no mean of {list(numbers)}")
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Value(statistics.fmean(numbers), deviation, digits=digits, count=len(numbers))
