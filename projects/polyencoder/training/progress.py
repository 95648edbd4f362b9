"""Progress and goal of a run, in examples, updates and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """The progress of a run, resumed or not: examples of all processes, batches, updates and seconds."""

    examples: int = 0
    batches: int = 0
    updates: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Goal:
    """When a run ends: at the first limit reached; None for no limit."""

    examples: float | None = None
    updates: int | None = None
    seconds: float | None = None

    def compute_share(self, done: Progress) -> float | None:
        """The fraction of the run that is done; None if unknown."""
        pairs = ((done.examples, self.examples), (done.updates, self.updates), (done.seconds, self.seconds))
        return max((min(1.0, value / limit) for value, limit in pairs if limit), default=None)

    def compute_time(self, done: Progress) -> float:
        """The fraction of the time limit that has passed; 0 without a limit."""
        return min(1.0, done.seconds / self.seconds) if self.seconds else 0.0

    def is_reached(self, done: Progress) -> bool:
        return self.compute_share(done) == 1.0

    def compute_total_updates(self, *, batch: int, accumulate: int) -> int | None:
        """The number of updates of the run, with `batch` examples per batch; None if unknown."""
        limits = [] if self.updates is None else [self.updates]
        if self.examples is not None:
            limits.append(-int(-self.examples // batch) // accumulate)
        return max(1, min(limits)) if limits else None

    def estimate_seconds_left(self, done: Progress, *, rate: float) -> float | None:
        """Estimates the time left at `rate` examples per second, without evaluations."""
        lefts = []
        if self.seconds:
            lefts.append(self.seconds - done.seconds)
        if rate and self.examples:
            lefts.append((self.examples - done.examples) / rate)
        if rate and self.updates and done.updates:
            lefts.append((self.updates - done.updates) * done.examples / done.updates / rate)
        return max(0.0, min(lefts)) if lefts else None
