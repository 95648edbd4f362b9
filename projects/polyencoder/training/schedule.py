"""Learning-rate schedules: linear warm-up, then decay by updates or on a plateau.

The rate is a function of the updates so far and a few numbers stored in checkpoints: a resumed run has the rates of an
uninterrupted one.
"""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.settings.training import ScheduleConfig

BETTER = 1e-4  # relative improvement of a validation loss, the `threshold` of torch's ReduceLROnPlateau
WARMUP = 100
MEASURED = 5  # updates after which their speed is known


class Schedule:
    """Sets the learning rate of an optimizer; the groups' initial rate is the maximum.

    With a time limit (`by_time`), warm-up and decay are fractions of the updates expected at the speed so far.
    total_updates: without that limit; None if unknown. ConfigError if the schedule needs an unknown number of updates,
    or its warm-up takes all of them.
    """

    def __init__(
        self, optimizer: Optimizer, config: ScheduleConfig, *, total_updates: int | None, by_time: bool = False
    ) -> None:
        is_known = total_updates is not None or by_time
        self._name = config.name or ("linear" if is_known else "constant")
        if self._name in ("linear", "cosine") and not is_known:
            raise ConfigError(
                f"the schedule {config.name!r} needs the number of updates: give it, or train for epochs of data of "
                "known size",
                argument="max_updates",
            )
        self._optimizer, self._config, self._total = optimizer, config, total_updates
        if config.warmup_updates is not None and total_updates is not None and config.warmup_updates >= total_updates:
            raise ConfigError(
                f"a warm-up of {config.warmup_updates} updates takes the whole run, of {total_updates}",
                argument="warmup_updates",
            )
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        config.check_peak(self._base[0])
        self._updates, self._time, self._reduction = 0, 0.0, 1.0
        self._best, self._bad = math.inf, 0
        self._set()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, updates: int, *, time: float) -> None:
        """After an update: the number of updates and the fraction of the time limit, 0 without one."""
        self._updates, self._time = updates, time
        self._set()

    @property
    def expected_updates(self) -> float | None:
        """The expected number of updates of the run; None if unknown."""
        if self._time <= 0 or self._updates < MEASURED:
            return self._total
        by_time = self._updates / self._time
        return by_time if self._total is None else min(by_time, self._total)

    @property
    def warmup_updates(self) -> int:
        """The number of warm-up updates."""
        config, expected = self._config, self.expected_updates
        if config.warmup_updates is not None:
            return config.warmup_updates
        if expected is None:
            return WARMUP if config.longest_warmup is None else config.longest_warmup
        share = int(expected * config.warmup_share)  # 0 of a few updates: not all are for warm-up
        return share if config.longest_warmup is None else min(config.longest_warmup, share)

    def record_validation(self, loss: float) -> None:
        """After a validation, for the schedule "plateau"; ignored during warm-up."""
        if self._name != "plateau" or self._updates < self.warmup_updates:
            return
        if loss < self._best * (1 - BETTER):
            self._best, self._bad = loss, 0
            return
        self._bad += 1
        if self._bad > self._config.patience:
            self._reduction, self._bad = self._reduction * self._config.decay, 0
            self._set()

    def state_dict(self) -> dict[str, Any]:
        plateau = {"reduction": self._reduction, "best": self._best, "bad": self._bad}
        return {"updates": self._updates, "time": self._time, **plateau}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates, self._time = state["updates"], state["time"]
        self._reduction, self._best, self._bad = state["reduction"], state["best"], state["bad"]
        self._set()

    def _set(self) -> None:
        reduction = self._reduction if self._name == "plateau" else 1.0  # a resumed run may have another schedule
        factor = self._compute_factor() * reduction
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor

    def _compute_factor(self) -> float:
        config, warmup = self._config, self.warmup_updates
        if self._updates < warmup:
            return config.warmup_start + (1 - config.warmup_start) * self._updates / warmup
        done = self._updates - warmup
        if self._name == "invsqrt":
            gamma = config.gamma or max(1, warmup)
            return math.sqrt(gamma / (gamma + done))
        if self._name in ("plateau", "constant"):
            return 1.0
        total = self.expected_updates
        share = 0.0 if total is None else min(1.0, done / max(1, total - warmup))
        falling = 1 - share if self._name == "linear" else (1 + math.cos(math.pi * share)) / 2
        final = config.final_learning_rate / self._base[0]
        return final + (1 - final) * falling
