"""The command line of `-m pretrain_ranker`: flags of `polyencoder pretrain`, under ParlAI's names where it has them."""

from __future__ import annotations

from typing import get_args

from parlai.agents.ranker.args import add_learning_args, set_training_defaults
from parlai.agents.ranker.flags import given_flags
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.config import NextName, Reduction
from polyencoder.pretraining.inputs import CONTEXT_SHARE
from polyencoder.pretraining.start import POSITIONS
from polyencoder.settings.pretrain import WARMUP, WARMUP_SHARE

__all__ = ["add_pretraining_args", "settle_schedule"]

BATCH_SIZE = 64

PAPER_DEFAULTS = {
    "optimizer": "adamw",  # without decay this is Adam; ParlAI's adam is AMSGrad
    "learningrate": 2e-4,
    "betas": "0.9,0.98",
    "weight_decay": 0.0,
    "lr_scheduler": "invsqrt",
    "warmup_updates": WARMUP,
    "gradient_clip": 5.0,
    "candidates": "batch",  # a task need not look for any
    "eval_candidates": "batch",
    "history_size": 20,
    "text_truncate": POSITIONS,  # and --n-positions at most
    "label_truncate": POSITIONS // CONTEXT_SHARE,  # an estimate, for --dynamic-batching
    "validation_every_n_epochs": 0.5,
    "save_after_valid": True,  # a run that is killed goes on from there
}
"""Section 4.1 of Humeau et al. (ICLR 2020), and what `polyencoder pretrain` has where it says nothing."""


def add_pretraining_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Add the flags, with the paper's numbers as their defaults."""
    TorchRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    group = parser.add_argument_group("Pre-training arguments")
    group.add_argument(
        "--vocabulary",
        type=str,
        default=None,
        help="The vocabulary of a new encoder: the folder that `polyencoder vocab --type bpe` wrote.",
    )
    group.add_argument(
        "--backbone",
        type=str,
        default=None,
        help="Continue with this encoder and its own tokenizer instead: a hub id or a folder.",
    )
    group.add_argument(
        "--mask-probability", type=float, default=0.15, help="Share of the words of a sequence that are masked."
    )
    group.add_argument(
        "--next",
        type=str,
        default="yes-no",
        choices=list(get_args(NextName)),
        help="yes-no: whether a response follows, as in the paper; contrastive: which one of the batch does.",
    )
    group.add_argument(
        "--reduction-type",
        type=str,
        default=None,
        choices=list(get_args(Reduction)),
        help="How contrastive pools outputs into a vector. Default: a sentence encoder's own, else first.",
    )
    _add_size_args(parser)
    add_learning_args(parser)
    parser.set_defaults(**PAPER_DEFAULTS)
    set_training_defaults(parser, partial_opt, batchsize=BATCH_SIZE, validation_metric="loss")


def _add_size_args(parser: ParlaiParser) -> None:
    group = parser.add_argument_group("The encoder")
    group.add_argument("-nl", "--n-layers", type=int, default=12, help="Layers of a new encoder.")
    group.add_argument("-esz", "--embedding-size", type=int, default=768, help="Dimensions of a new encoder.")
    group.add_argument("--n-heads", type=int, default=12, help="Attention heads of a new encoder.")
    group.add_argument("-hid", "--ffn-size", type=int, default=3072, help="Dimensions of its feed-forward layers.")
    group.add_argument(
        "--n-positions",
        type=int,
        default=None,
        help="Maximum tokens of a context with its response. Default: 512, or the encoder's if fewer.",
    )
    group.add_argument("--dropout", type=float, default=0.1, help="Dropout of embeddings and layers.")
    group.add_argument("--attention-dropout", type=float, default=0.1, help="Dropout of attention weights.")


def settle_schedule(opt: Opt) -> None:
    """Write into the options what the schedule's flags mean that say nothing: a warm-up of 6% of the run's steps."""
    given, steps = given_flags(opt), opt.get("max_train_steps") or -1
    if "warmup_updates" not in given and steps > 0:
        opt["warmup_updates"] = max(1, round(WARMUP_SHARE * steps))
    if (opt.get("invsqrt_lr_decay_gamma") or -1) <= 0:
        opt["invsqrt_lr_decay_gamma"] = opt["warmup_updates"]  # what ParlAI takes, with a warning
