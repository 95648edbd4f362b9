"""ParlAI's learning-rate schedules on current torch."""

from __future__ import annotations

from typing import Any

import parlai.utils.logging as logging
from parlai.core.opt import Opt
from parlai.nn.lr_scheduler import ParlAILRScheduler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from polyencoder.errors import ConfigError
from polyencoder.training.schedule import Schedule, ScheduleConfig

UNTIL_THE_END = ("linear", "cosine")  # schedules that reach their last rate with the run's last update


class WarmupThenPlateau(ParlAILRScheduler):
    """Linear warm-up, then a factor whenever the validation loss has stopped falling (Section 5.1 of the paper).

    ParlAI's own class for this passes an argument that torch has removed.
    """

    def __init__(
        self, optimizer: Optimizer, *, patience: int, decay: float, warmup_updates: int, warmup_rate: float
    ) -> None:
        super().__init__(warmup_updates, warmup_rate)
        self.scheduler = ReduceLROnPlateau(optimizer, "min", factor=decay, patience=patience)

    def step(self, num_steps: int) -> None:
        """After an update. The last one of the warm-up brings the full rate; ParlAI's own stops one short of it."""
        if self._is_lr_warming_up():
            self.warmup_scheduler.step()
        self._number_training_updates = num_steps

    def train_step(self, scheduler_steps: int) -> None:
        pass

    def valid_step(self, metrics_dict: dict[str, Any]) -> None:
        if "loss" in metrics_dict and not self._is_lr_warming_up():
            self.scheduler.step(float(metrics_dict["loss"]))


class ToFinalRate(ParlAILRScheduler):
    """The library's schedules that end at a rate above 0; ParlAI's end at 0.

    The rate is a function of the updates done, so a checkpoint need not hold any more than their number.
    """

    def __init__(self, optimizer: Optimizer, opt: Opt, *, updates: int) -> None:
        super().__init__(0, 1.0)
        full = opt["learningrate"]
        for group in optimizer.param_groups:
            group["lr"] = full  # that of a checkpoint's optimizer has fallen already
        warmup = max(0, opt.get("warmup_updates") or 0)
        config = ScheduleConfig(opt["lr_scheduler"], warmup, final=opt["final_learning_rate"] / full)
        self.scheduler = Schedule(optimizer, config, total_updates=updates)

    def step(self, num_steps: int) -> None:
        """After an update."""
        self._number_training_updates = num_steps
        self.scheduler.step(num_steps)

    def get_last_lr(self) -> float:
        return self.scheduler.learning_rate

    def train_step(self, scheduler_steps: int) -> None:
        pass

    def valid_step(self, metrics_dict: dict[str, Any]) -> None:
        pass


def needs_length(opt: Opt) -> bool:
    """Whether the schedule depends on how many updates the run has."""
    return opt.get("lr_scheduler") in UNTIL_THE_END or _warms_up(opt)


def limit_warmup(opt: Opt, *, updates: int | None) -> None:
    """A warm-up that was not asked for takes a tenth of a run at most: write that into the options.

    `updates` is how many the run has, None if nobody knows.
    """
    if updates is None or not _warms_up(opt):
        return
    warmup = opt["warmup_updates"]
    if not _warmup_is_given(opt) and warmup > updates // 10:
        opt["warmup_updates"] = updates // 10
        logging.info(f"warm-up: {updates // 10} of the run's {updates} updates (--warmup-updates to have others)")
    elif warmup >= updates:
        logging.warning(
            f"--warmup-updates {warmup}: the run of {updates} updates is over before its learning rate is full"
        )


def _warms_up(opt: Opt) -> bool:
    return (opt.get("warmup_updates") or -1) > 0 and opt.get("lr_scheduler") != "none"


def _warmup_is_given(opt: Opt) -> bool:
    return (opt.get("override") or {}).get("warmup_updates") is not None


def build_schedule(
    opt: Opt, optimizer: Optimizer, states: dict[str, Any], *, hard_reset: bool, updates: int | None = None
) -> ParlAILRScheduler | None:
    """The schedule that `--lr-scheduler` names, in the state that a checkpoint left it in.

    So is the optimizer's rate: to make a schedule sets it to that of a first update, and to load its state does not set
    it back. `updates` is how many the run has, if it is known and not `--max-train-steps`.

    Raises:
        ConfigError: the schedule ends with the run, of which nobody knows how many updates it has.
    """
    has_final = bool(opt.get("final_learning_rate"))
    if opt.get("lr_scheduler") in UNTIL_THE_END and (has_final or opt.get("lr_scheduler_decay") != 1.0):
        end = updates or opt.get("max_train_steps") or -1
        if end <= 0:
            raise ConfigError(
                f"--lr-scheduler {opt['lr_scheduler']} ends with the run, and how many updates that has cannot be "
                "known here: give --max-train-steps, or --num-epochs of data whose size is known"
            )
        if has_final:
            to_final = ToFinalRate(optimizer, opt, updates=end)
            to_final.step(0 if hard_reset else states.get("number_training_updates", 0))
            return to_final
        # a run that is shorter than its warm-up never comes to the decay, for which one update is left
        opt = Opt({**opt, "max_train_steps": max(end, (opt.get("warmup_updates") or 0) + 1)})
    fresh = hard_reset or states.get("lr_scheduler_type", opt.get("lr_scheduler")) != opt.get("lr_scheduler")
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = _schedule(opt, optimizer, states, fresh=fresh)
    if schedule and not fresh and states.get("number_training_updates"):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    return schedule


def _schedule(opt: Opt, optimizer: Optimizer, states: dict[str, Any], *, fresh: bool) -> ParlAILRScheduler | None:
    if opt.get("lr_scheduler") != "reduceonplateau" or opt.get("lr_scheduler_decay") == 1.0:
        if opt.get("lr_scheduler") == "fixed":  # decays at every so many validations, which cannot be our default 0
            opt = Opt({**opt, "lr_scheduler_patience": max(1, opt["lr_scheduler_patience"])})
        return ParlAILRScheduler.lr_scheduler_factory(opt, optimizer, states, fresh)
    schedule = WarmupThenPlateau(
        optimizer,
        patience=opt["lr_scheduler_patience"],
        decay=opt["lr_scheduler_decay"],
        warmup_updates=opt["warmup_updates"],
        warmup_rate=opt["warmup_rate"],
    )
    schedule._init_warmup_scheduler(optimizer, states, fresh)
    if not fresh:
        schedule.load_state(states)
    return schedule
