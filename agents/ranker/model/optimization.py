"""Precision, parameter groups and the library's `Schedule` from ParlAI's flags."""

from __future__ import annotations

import math
from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.options import given_flags
from parlai.core.opt import Opt
from parlai.utils.misc import warn_once
from torch.optim import Optimizer

from polyencoder.errors import ConfigError
from polyencoder.modeling.bf16 import why_bf16_gains_nothing
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.settings.training import PrecisionName, ScheduleConfig, ScheduleName, new_rate
from polyencoder.training.optimizer import FUSED, NEW, check_embedding_clip
from polyencoder.training.optimizer import parameter_groups as groups_by_rate
from polyencoder.training.precision import Precision
from polyencoder.training.schedule import Schedule

ADAMW_DECAY = 0.01  # Section 5.1 of the poly-encoder paper: Adam with decay 0.01, Adamax without


def precision_of(opt: Opt, *, use_cuda: bool) -> Precision:
    """The precision of `--bf16` or, on a GPU, `--fp16`."""
    name: PrecisionName = "bfloat16" if opt.get("bf16") else "float32"
    if opt.get("fp16") and use_cuda:
        name = "float16"
    return Precision(name, torch.device("cuda" if use_cuda else "cpu"))


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
    if opt.get("bf16") and (reason := why_bf16_gains_nothing("cuda" if use_cuda else "cpu")):
        logging.warning(f"--bf16 true gains nothing here: {reason}")


# Optimizers of torch.optim that cannot train a ranker
_UNUSABLE = {
    "lbfgs": "it computes the loss several times for each update, which ParlAI's training loop does not",
    "muon": "it only updates matrices, and a ranker also has biases and layer norms",
    "optimizer": "it is only the base class of the others",
    "sparseadam": "it needs sparse gradients, and a ranker's are dense",
}


# ParlAI's flags of single optimizers: their defaults, and the optimizers that read them
_ADAMS = ("adam", "adamw", "adamax", "qhadam", "sparseadam", "fused_adam", "fused_lamb", "mem_eff_adam")
_OF_SOME = {
    "betas": ((0.9, 0.999), (*_ADAMS, "adafactor")),
    "adam_eps": (1e-8, _ADAMS),
    "adafactor_eps": ((1e-30, 1e-3), ("adafactor",)),
    "momentum": (0, ("sgd", "rmsprop", "qhm")),
    "nesterov": (True, ("sgd",)),
    "nus": ((0.7,), ("qhm", "qhadam")),
}
_WITH_MOMENTUM = {"nesterov": "sgd", "nus": "qhm"}  # flags that this optimizer reads only with a momentum


def check_optimizer(opt: Opt) -> None:
    """Raises ConfigError for an optimizer, or a learning rate, that cannot train a ranker.

    So does a flag that this optimizer does not read, or not without a momentum, except with its default, which an
    option file has.
    """
    name, rate = opt["optimizer"], opt["learningrate"]
    if not 0 < rate < math.inf:
        raise ConfigError(f"--learningrate {rate}: give one above 0")
    if name in _UNUSABLE:
        raise ConfigError(f"--optimizer {name} cannot train a ranker: {_UNUSABLE[name]}. Use adamw, adamax or sgd")
    given = given_flags(opt)
    for one, (default, optimizers) in _OF_SOME.items():
        value = given.get(one)
        value = tuple(value) if isinstance(value, list) else value
        if value in (None, default):
            continue
        flag = f"--{one.replace('_', '-')} {given[one]}"
        if name not in optimizers:
            raise ConfigError(f"{flag} is not read by --optimizer {name}, but by {', '.join(optimizers)}: leave it out")
        if _WITH_MOMENTUM.get(one) == name and not (opt.get("momentum") or 0) > 0:
            raise ConfigError(
                f"{flag} is read by --optimizer {name} only with --momentum: give one above 0, or leave it out"
            )
        if one == "nus" and name == "qhm" and len(opt["nus"]) > 1:
            raise ConfigError(
                f"{flag}: --optimizer qhm reads a single number, the others are of qhadam: leave them out"
            )


def new_learning_rate(opt: Opt) -> float:
    """The peak rate of `--new-learning-rate`; without the flag a model from `--init-model` has no new parts.

    ParlAI also sets `init_model`, to the checkpoint, where a run resumes.
    """
    rate, name = opt["learningrate"], opt["optimizer"]
    is_trained = bool(given_flags(opt).get("init_model"))
    return new_rate(rate, opt.get("new_learning_rate") or (rate if is_trained else None), optimizer=name)


def parameter_groups(model: TrainableModel, opt: Opt) -> list[dict[str, Any]]:
    """Parameter groups: with weight decay, without, clipped embeddings, and new parts."""
    decay = opt.get("weight_decay")
    if decay is None:
        decay = ADAMW_DECAY if opt["optimizer"] == "adamw" else 0.0
    groups = groups_by_rate(
        model,
        learning_rate=opt["learningrate"],
        new_learning_rate=new_learning_rate(opt),
        weight_decay=decay,
        embedding_clip=opt.get("embedding_clip") or None,
    )
    check_embedding_clip(groups, opt.get("embedding_clip"))
    if opt["optimizer"] == "adamw":  # ParlAI gives these to its other Adams only
        for group in groups:
            group["betas"], group["eps"] = tuple(opt.get("betas", (0.9, 0.999))), opt.get("adam_eps", 1e-8)
    if opt["optimizer"] == "adadelta" and opt.get("adadelta_eps") is not None:
        for group in groups:
            group["eps"] = opt["adadelta_eps"]
    if opt["optimizer"] in FUSED:
        for group in groups:
            group["fused"] = True
    return groups


UNTIL_THE_END = ("linear", "cosine")  # schedules that reach their last rate with the run's last update
NAMES: dict[str, ScheduleName] = {
    "reduceonplateau": "plateau",
    "linear": "linear",
    "cosine": "cosine",
    "invsqrt": "invsqrt",
    "none": "constant",
}


def check_schedule(opt: Opt) -> None:
    """Raises ConfigError for a ParlAI schedule that the library does not have."""
    name = opt.get("lr_scheduler") or "none"
    if name not in NAMES:
        raise ConfigError(f"--lr-scheduler {name} is not supported; use one of {', '.join(NAMES)}")


def needs_length(opt: Opt) -> bool:
    """Whether the schedule depends on the number of updates of the run."""
    return opt.get("lr_scheduler") in UNTIL_THE_END or _warms_up(opt)


def _warms_up(opt: Opt) -> bool:
    return (opt.get("warmup_updates") or -1) > 0 and _changes(opt)


def _changes(opt: Opt) -> bool:
    """Whether the learning rate changes at all.

    As in ParlAI, it does not with a `--lr-scheduler-decay` of 1, unless there is a `--final-learning-rate`.
    """
    name = opt.get("lr_scheduler") or "none"
    has_final = bool(opt.get("final_learning_rate")) and name in UNTIL_THE_END
    return name != "none" and (opt.get("lr_scheduler_decay") != 1.0 or has_final)


def build_schedule(opt: Opt, optimizer: Optimizer, *, updates: int | None) -> Schedule:
    """Builds the schedule of `--lr-scheduler`, from the full rate; `updates`: the run's number of updates, if known.

    Raises:
        ConfigError: the schedule ends with the run, whose number of updates is unknown.
    """
    check_schedule(opt)
    full, final = opt["learningrate"], opt.get("final_learning_rate") or 0.0
    for group in optimizer.param_groups:  # a checkpoint's optimizer has the current rates
        group["lr"] = new_learning_rate(opt) if group.get(NEW) else full
    name, warmup = NAMES[opt.get("lr_scheduler") or "none"], max(0, opt.get("warmup_updates") or 0)
    is_given = "warmup_updates" in given_flags(opt)
    if not _changes(opt):
        if name != "constant":
            warn_once(f"--lr-scheduler-decay 1: the learning rate stays {full}, without warm-up or --lr-scheduler")
        return Schedule(optimizer, ScheduleConfig(name="constant", warmup_updates=0), total_updates=None)
    if is_given and updates and warmup >= updates:
        logging.warning(
            f"--warmup-updates {warmup}: the run of {updates} updates ends before the learning rate reaches its peak"
        )
    is_limited = updates is not None and not is_given and warmup > 0  # by the library, to a share of the run
    total = updates if is_limited else None
    if name in UNTIL_THE_END and not is_limited:
        end = updates or opt.get("max_train_steps") or -1
        if end <= 0:
            raise ConfigError(
                f"--lr-scheduler {name} ends with the run, whose number of updates is unknown here: give "
                "--max-train-steps, or --num-epochs of data whose size is known"
            )
        total = max(end, warmup + 1)  # a run shorter than its warm-up never decays
    gamma = opt.get("invsqrt_lr_decay_gamma") or -1
    config = ScheduleConfig(
        name=name,
        warmup_updates=None if is_limited else warmup,
        longest_warmup=warmup,
        decay=opt["lr_scheduler_decay"],
        patience=opt["lr_scheduler_patience"],
        final_learning_rate=final if name in UNTIL_THE_END else 0.0,
        warmup_start=opt["warmup_rate"],
        gamma=gamma if gamma > 0 else None,
    )
    return Schedule(optimizer, config, total_updates=total)
