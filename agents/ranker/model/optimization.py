"""The library's settings of optimizer and schedule, and the goal of a run, from ParlAI's flags."""

from __future__ import annotations

from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.options import select_explicit_flags
from parlai.agents.ranker.settings import format_flag
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.settings.training import ScheduleName
from polyencoder.training.precision import explain_no_bf16_gain
from polyencoder.training.progress import Goal

ADAMW_DECAY = 0.01  # Section 5.1 of the poly-encoder paper: Adam with decay 0.01, Adamax without


def check_precision(opt: Opt, *, use_cuda: bool) -> None:
    """Warns about a device or precision that this machine does not support; a model trained with it still runs."""
    gpu = (opt.get("override") or {}).get("gpu")
    if gpu not in (None, -1) and not use_cuda and not opt.get("no_cuda"):
        logging.warning(f"--gpu {gpu}: there is no GPU here: computing on the CPU")
    if opt.get("fp16") and opt.get("bf16"):
        raise ConfigError("--fp16 true and --bf16 true exclude each other: choose one")
    if opt.get("fp16") and not use_cuda:
        logging.warning("--fp16 true needs a GPU: computing in float32. On a CPU --bf16 true may be faster")
    if opt.get("fp16_impl") not in (None, "safe"):
        logging.warning(f"--fp16-impl {opt['fp16_impl']}: --fp16 keeps weights in float32, by autocast")
        opt["fp16_impl"] = "safe"
    if opt.get("bf16") and (reason := explain_no_bf16_gain("cuda" if use_cuda else "cpu")):
        logging.warning(f"--bf16 true gains nothing here: {reason}")


# ParlAI's flags of single optimizers: their defaults, and the optimizers that read them
_ADAMS = ("adam", "adamw", "adamax")
_READ_BY: dict[str, tuple[Any, tuple[str, ...]]] = {
    "betas": ((0.9, 0.999), _ADAMS),
    "adam_eps": (1e-8, _ADAMS),
    "momentum": (0, ("sgd",)),
    "nesterov": (True, ("sgd",)),
    "nus": ((0.7,), ()),
    "adafactor_eps": ((1e-30, 1e-3), ()),
}
SCHEDULES: dict[str, ScheduleName] = {
    "reduceonplateau": "plateau",
    "linear": "linear",
    "cosine": "cosine",
    "invsqrt": "invsqrt",
    "none": "constant",
}
UNTIL_THE_END = ("linear", "cosine")  # schedules that reach their last rate with the run's last update


def update_settings(opt: Opt) -> dict[str, Any]:
    """The library's settings of optimizer, schedule and updates, by flat name. ConfigError: a flag has no effect."""
    explicit, optimizer, schedule = select_explicit_flags(opt), opt["optimizer"], opt.get("lr_scheduler") or "none"
    if schedule not in SCHEDULES:
        raise ConfigError(f"--lr-scheduler {schedule} is not supported; use one of {', '.join(SCHEDULES)}")
    for name, (default, readers) in _READ_BY.items():
        value = tuple(explicit[name]) if isinstance(explicit.get(name), list) else explicit.get(name)
        if value not in (None, default) and optimizer not in readers:
            raise ConfigError(
                f"{format_flag(name)} {explicit[name]} is not read by --optimizer {optimizer}"
                + (f", but by {', '.join(readers)}" if readers else "")
                + ": leave it out"
            )
    rate, decay, gamma = opt["learningrate"], opt.get("weight_decay"), opt.get("invsqrt_lr_decay_gamma") or -1
    values = {
        "optimizer": optimizer,
        "learning_rate": rate,
        "weight_decay": (ADAMW_DECAY if optimizer == "adamw" else 0.0) if decay is None else decay,
        "optimizer.momentum": opt.get("momentum") or 0.0,
        "optimizer.nesterov": opt.get("nesterov", True),
        "schedule": SCHEDULES[schedule],
        "schedule.decay": opt["lr_scheduler_decay"],
        "schedule.patience": opt["lr_scheduler_patience"],
        "schedule.warmup_start": opt["warmup_rate"],
        "schedule.gamma": gamma if gamma > 0 else None,
        "accumulate": max(1, opt.get("update_freq") or 1),
        "clip": max(0.0, opt.get("gradient_clip") or 0.0),
    }
    if optimizer in _ADAMS:
        values |= {"betas": tuple(opt.get("betas", (0.9, 0.999))), "optimizer.eps": opt.get("adam_eps", 1e-8)}
    if opt.get("new_learning_rate") is None and explicit.get("init_model"):  # a trained ranker has no new parts
        values["new_learning_rate"] = rate
    if schedule in UNTIL_THE_END:
        values["final_learning_rate"] = opt.get("final_learning_rate") or 0.0
    warmup = 0 if schedule == "none" else max(0, opt.get("warmup_updates") or 0)
    is_limit = warmup > 0 and "warmup_updates" not in explicit  # then a short run has a share of its updates
    return {**values, "schedule.longest_warmup" if is_limit else "warmup_updates": warmup}


def needs_length(opt: Opt) -> bool:
    """Whether the schedule depends on the number of updates of the run."""
    schedule = opt.get("lr_scheduler") or "none"
    return schedule in UNTIL_THE_END or (schedule != "none" and (opt.get("warmup_updates") or -1) > 0)


def read_goal(opt: Opt, *, epoch: int | None) -> Goal:
    """The goal of ParlAI's training loop, from the options; `epoch`: the number of examples in one, if known."""

    def read_limit(name: str) -> Any:
        return value if (value := opt.get(name) or -1) > 0 else None

    epochs = read_limit("num_epochs")
    examples = epochs * epoch if epochs and epoch else None
    return Goal(examples, read_limit("max_train_steps"), read_limit("max_train_time"))
