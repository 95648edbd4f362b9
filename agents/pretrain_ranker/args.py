"""The command line of `-m pretrain_ranker`: flags of `polyencoder pretrain`, with ParlAI's names if it has them."""

from __future__ import annotations

from parlai.agents.ranker.args import set_training_defaults
from parlai.agents.ranker.flags import given_flags
from parlai.agents.ranker.settings import add_settings
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.pretraining.inputs import CONTEXT_SHARE
from polyencoder.pretraining.start import POSITIONS
from polyencoder.settings.pretrain import WARMUP, WARMUP_SHARE, PretrainingSettings
from polyencoder.settings.training import OptimizerConfig, ScheduleConfig

BATCH_SIZE = 64

PAPER_DEFAULTS = {
    "optimizer": "adamw",  # without decay this is Adam; ParlAI's adam is AMSGrad
    "learningrate": 2e-4,
    "betas": "0.9,0.98",
    "weight_decay": 0.0,
    "lr_scheduler": "invsqrt",
    "warmup_updates": WARMUP,
    "gradient_clip": 5.0,
    "candidates": "batch",  # so that tasks sample none
    "eval_candidates": "batch",
    "history_size": 20,
    "text_truncate": POSITIONS,  # at most --n-positions
    "label_truncate": POSITIONS // CONTEXT_SHARE,  # an estimate, for --dynamic-batching
    "validation_every_n_epochs": 0.5,
    "save_after_valid": True,  # a killed run resumes from there
}
"""Section 4.1 of Humeau et al. (ICLR 2020), else the defaults of `polyencoder pretrain`."""


def add_pretraining_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Adds the flags, with the paper's values as defaults."""
    TorchRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_settings(parser, PretrainingSettings)
    add_settings(parser, OptimizerConfig)
    add_settings(parser, ScheduleConfig)
    parser.set_defaults(**PAPER_DEFAULTS)
    set_training_defaults(parser, partial_opt, batchsize=BATCH_SIZE, validation_metric="loss")


def settle_schedule(opt: Opt) -> None:
    """Sets the default schedule in the options: a warm-up of 6% of the run's steps."""
    given, steps = given_flags(opt), opt.get("max_train_steps") or -1
    if "warmup_updates" not in given and steps > 0:
        opt["warmup_updates"] = max(1, round(WARMUP_SHARE * steps))
    if (opt.get("invsqrt_lr_decay_gamma") or -1) <= 0:
        opt["invsqrt_lr_decay_gamma"] = opt["warmup_updates"]  # the value that ParlAI falls back to, with a warning
