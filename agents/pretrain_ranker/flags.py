"""The flags of `-m pretrain_ranker`: those of `polyencoder pretrain`, with ParlAI's names, and their checks."""

from __future__ import annotations

from typing import Any

from parlai.agents.ranker import flags
from parlai.agents.ranker.args import set_training_defaults
from parlai.agents.ranker.model.loop import trains
from parlai.agents.ranker.model.source import LoadedModel
from parlai.agents.ranker.settings import add_settings
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.config import PROMPTS
from polyencoder.errors import ConfigError
from polyencoder.pretraining.inputs import CONTEXT_SHARE
from polyencoder.pretraining.start import POSITIONS, check_without
from polyencoder.settings.pretrain import WARMUP, WARMUP_SHARE, EncoderSettings, PretrainingSettings
from polyencoder.settings.training import OptimizerConfig, ScheduleConfig

BATCH_SIZE = 64

PAPER_DEFAULTS = {
    "optimizer": "adam",
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


OF_THE_ENCODER = ("n_layers", "embedding_size", "n_heads", "ffn_size")
"""Sizes that must match an existing encoder."""

_RANKS = "pre-training ranks no candidates"
_WHOLE = "a response is truncated only if it leaves less than a quarter of --n-positions for its context"
_TOKENIZER = "the tokenizer comes from --vocabulary or --backbone"
_EMBEDDINGS = "a new encoder trains its own embeddings, and a --backbone has its own"
_TURNS = "turns are separated by the newline token, or as the --backbone's tokenizer separates texts"

_OF_CANDIDATES = """
    candidates eval_candidates interactive_candidates rank_candidates repeat_blocking_heuristic fixed_candidates_path
    fixed_candidate_vecs encode_candidate_vecs encode_candidate_vecs_batchsize train_predict cap_num_predictions
    rank_top_k inference topk return_cand_scores
"""
_OF_TRAINED_DICTIONARIES = """
    dict_tokenizer dict_lower dict_maxtokens dict_minfreq dict_textfields dict_maxexs dict_include_valid
    dict_include_test dict_initpath dict_language dict_max_ngram_size bpe_debug bpe_vocab bpe_merge
    bpe_add_prefix_space bpe_dropout
"""

UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(_OF_CANDIDATES.split(), ((None,), _RANKS)),
    **dict.fromkeys(_OF_TRAINED_DICTIONARIES.split(), ((None,), _TOKENIZER)),
    **{name: flags.UNSUPPORTED[name] for name in ("history_reversed", "history_add_global_end_token")},
    "force_fp16_tokens": flags.UNSUPPORTED["force_fp16_tokens"],
    "label_truncate": ((None,), _WHOLE),
    "embedding_type": (("random",), _EMBEDDINGS),
    "embedding_projection": (("random",), _EMBEDDINGS),
    "delimiter": ((None,), _TURNS),
}
"""The values that mean "not used", and why others are not supported."""


def add_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Adds the flags, with the paper's values as defaults."""
    TorchRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_settings(parser, PretrainingSettings)
    add_settings(parser, OptimizerConfig)
    add_settings(parser, ScheduleConfig)
    parser.set_defaults(**PAPER_DEFAULTS)
    set_training_defaults(parser, partial_opt, batchsize=BATCH_SIZE, validation_metric="loss")


def settle_schedule(opt: Opt) -> None:
    """Sets the default schedule in the options: a warm-up of 6% of the run's steps."""
    given, steps = flags.given_flags(opt), opt.get("max_train_steps") or -1
    if "warmup_updates" not in given and steps > 0:
        opt["warmup_updates"] = max(1, round(WARMUP_SHARE * steps))


def check_flags(opt: Opt) -> None:
    """Raises ConfigError for a flag that pre-training does not support, before anything is built."""
    given = flags.given_flags(opt)
    flags.check_unsupported(given, UNSUPPORTED)
    if opt.get("interactive_mode"):
        raise ConfigError("a pre-trained encoder gives no answers: train a ranker from it, with --backbone")
    if opt.get("vocabulary") and opt.get("backbone"):
        raise ConfigError(
            f"--vocabulary {opt['vocabulary']} and --backbone {opt['backbone']}: the first is for a new encoder, the "
            "second an encoder to train further, with its own tokenizer; give one"
        )
    if given.get("reduction_type") and opt["next"] != "contrastive":
        raise ConfigError(f"--reduction-type {given['reduction_type']}: is for --next contrastive; leave it out")
    is_alone = opt.get("batchsize") == 1 and (opt.get("dynamic_batching") or "off") == "off"
    if opt["next"] == "contrastive" and is_alone and trains(opt):
        raise ConfigError(
            "--next contrastive with --batchsize 1: the negatives are the other responses of a batch, and there are "
            "none; give a larger one"
        )
    encoder_settings(opt)


def encoder_settings(opt: Opt) -> EncoderSettings:
    """The library's settings of the pre-trained encoder, with checked values."""
    names = {"vocabulary", "backbone", "n_positions", "dropout", "attention_dropout", *OF_THE_ENCODER}
    if opt.get("backbone"):
        names.difference_update(OF_THE_ENCODER)  # a backbone has its own
    return EncoderSettings(**{name: opt.get(name) for name in names})


def check_start(opt: Opt, start: LoadedModel) -> None:
    """Raises CheckpointError for a resumed model of another objective, ConfigError for parts that would be dropped."""
    if start.origin.is_finetune:
        prompts = [getattr(start.config.text, name) for name in PROMPTS]
        check_without(start.config.dense, prompts, origin=str(start.origin))
        return
    given, own = flags.given_flags(opt), {"reduction_type": start.config.reduction}
    stored = flags.stored_options(start.origin) or {}
    if "next" in stored:
        own["next"] = stored["next"]
    flags.check_kept(given, own, origin=str(start.origin))
