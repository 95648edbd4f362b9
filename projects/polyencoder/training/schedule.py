"""Learning-rate schedules: a linear warm-up, then a decay with the updates or with validations.

A schedule is a factor of the updates done so far and of a few plain numbers, which a checkpoint keeps: going on from
one gives the rates of a run that was never stopped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch.optim import Optimizer

from polyencoder.errors import ConfigError

__all__ = ["Schedule", "ScheduleConfig", "ScheduleName"]

ScheduleName = Literal["plateau", "linear", "cosine", "invsqrt", "constant"]

BETTER = 1e-4  # a validation loss has fallen when it is lower by this share, as torch's ReduceLROnPlateau counts it


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate changes; the defaults are the paper's (Section 5.1).

    name: "plateau" multiplies it by `decay` whenever `patience` + 1 validations in a row have not lowered the loss;
    "linear" and "cosine" take it to `final` at the run's last update; "invsqrt" divides it by the root of the updates;
    "constant" keeps it. warmup_updates: over which it rises to its full value; None for 100, or a tenth of the
    run where that is less.
    """

    name: ScheduleName = "plateau"
    warmup_updates: int | None = None
    decay: float = 0.4
    patience: int = 0
    final: float = 0.0
    """The factor at the end of "linear" and "cosine"."""

    def __post_init__(self) -> None:
        if self.name not in get_args(ScheduleName):
            raise ConfigError(
                f"the schedule is {self.name!r}; it must be one of {', '.join(get_args(ScheduleName))}",
                argument="schedule",
            )
        if (self.warmup_updates or 0) < 0:
            raise ConfigError(
                f"warmup_updates is {self.warmup_updates}; it must be 0 or more", argument="warmup_updates"
            )
        if not 0 < self.decay <= 1:
            raise ConfigError(f"the decay of the learning rate is {self.decay}; it must be above 0 and at most 1")


WARMUP, WARMUP_START, WARMUP_SHARE = 100, 1e-4, 10


class Schedule:
    """Sets the learning rate of an optimizer; the rate that its groups have when it comes is the full one.

    Args:
        optimizer: whose rate it is.
        config: how it changes.
        total_updates: of the whole run; None if that is not known.

    Raises:
        ConfigError: the schedule needs the number of updates, which is not known, or its warm-up takes all of them.
    """

    def __init__(self, optimizer: Optimizer, config: ScheduleConfig, *, total_updates: int | None) -> None:
        if config.name in ("linear", "cosine") and total_updates is None:
            raise ConfigError(
                f"the schedule {config.name!r} needs to know how many updates there will be: give their number, or "
                "train for epochs of data whose size is known"
            )
        self._optimizer, self._config, self._total = optimizer, config, total_updates
        limit = None if total_updates is None else max(1, total_updates // WARMUP_SHARE)
        self.warmup_updates = config.warmup_updates
        if self.warmup_updates is None:
            self.warmup_updates = WARMUP if limit is None else min(WARMUP, limit)
        elif total_updates is not None and self.warmup_updates >= total_updates:
            raise ConfigError(
                f"a warm-up of {self.warmup_updates} updates takes the whole run, of {total_updates}",
                argument="warmup_updates",
            )
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self._updates, self._reduction = 0, 1.0
        self._best, self._bad = math.inf, 0
        self._set()

    @property
    def learning_rate(self) -> float:
        """That of the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, updates: int) -> None:
        """After an update: so many were done."""
        self._updates = updates
        self._set()

    def validated(self, loss: float) -> None:
        """After a validation, of which the schedule "plateau" takes note unless it is still warming up."""
        if self._config.name != "plateau" or self._updates < self._warmup:
            return
        if loss < self._best * (1 - BETTER):
            self._best, self._bad = loss, 0
            return
        self._bad += 1
        if self._bad > self._config.patience:
            self._reduction, self._bad = self._reduction * self._config.decay, 0
            self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "reduction": self._reduction, "best": self._best, "bad": self._bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates, self._reduction = state["updates"], state["reduction"]
        self._best, self._bad = state["best"], state["bad"]
        self._set()

    @property
    def _warmup(self) -> int:
        assert self.warmup_updates is not None
        return self.warmup_updates

    def _set(self) -> None:
        factor = self._factor() * self._reduction
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor

    def _factor(self) -> float:
        config, warmup = self._config, self._warmup
        if self._updates < warmup:
            return WARMUP_START + (1 - WARMUP_START) * self._updates / warmup
        done = self._updates - warmup
        if config.name == "invsqrt":
            gamma = max(1, warmup)
            return math.sqrt(gamma / (gamma + done))
        if config.name in ("plateau", "constant"):
            return 1.0
        assert self._total is not None
        share = min(1.0, done / max(1, self._total - warmup))
        falling = 1 - share if config.name == "linear" else (1 + math.cos(math.pi * share)) / 2
        return config.final + (1 - config.final) * falling
