"""The command line of every ranker: ParlAI's flags, the library's settings as flags, and defaults."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Collection
from functools import cache
from typing import Any

from parlai.agents.ranker.settings import add_settings, get_option_names
from parlai.agents.transformer.transformer import TransformerRankerAgent
from parlai.core.agents import Agent
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.calibration import AnswerOptions
from polyencoder.config import Architecture
from polyencoder.index.options import SearchOptions
from polyencoder.modeling.families import get_family
from polyencoder.serving.config import ServerConfig
from polyencoder.settings.evaluate import EvaluateSettings
from polyencoder.settings.train import TrainSettings

DEFAULTS = {
    "candidates": "batch",
    "validation_every_n_epochs": 0.5,
    "save_after_valid": True,  # a killed run resumes from there
    "no_answer": "I have no good answer to that.",
}
"""Defaults of all rankers that differ from ParlAI's or the library's."""

PAPER_DEFAULTS = {
    "text_truncate": 360,
    "label_truncate": 72,
    "history_size": 20,
    "optimizer": "adamw",
    "learningrate": 5e-5,
    "lr_scheduler_decay": 0.4,
    "lr_scheduler_patience": 0,
    "warmup_updates": 100,
    "share_word_embeddings": False,
    "normalize_sent_emb": None,  # default: the sentence encoder's or initial model's, else False
    "share_encoders": False,
    "type_optimization": None,  # default: all but the embeddings of a pre-trained encoder, else all
    # the paper's encoder: a BERT, ParlAI's `xlm` variant
    "variant": "xlm",
    "activation": "gelu",
    "learn_positional_embeddings": True,
    "embeddings_scale": False,
    "n_segments": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    # the size of a vocabulary trained on the task
    "dict_maxtokens": 30_000,
    "dict_lower": True,
}
"""Defaults of rankers with a backbone: Section 5.1 of Humeau et al. (ICLR 2020), input lengths of its first version."""

OF_AN_ARCHITECTURE: dict[Architecture, dict[str, Any]] = {
    "poly": {
        "polyencoder_type": "codes",
        "poly_n_codes": 64,
        "poly_attention_type": "basic",
        "poly_attention_num_heads": 4,
        "codes_attention_type": "basic",
        "codes_attention_num_heads": 4,
    },
    # Section 5.1: each example has its own negatives, and the warm-up is longer
    "cross": {"candidates": "inline", "warmup_updates": 1000, "encode_candidate_vecs": False},
    "late": {"encode_candidate_vecs": False},
}

NOTES = {
    "backbone": "Without it the encoder is trained from scratch, with the sizes of --embedding-size, --n-layers, "
    "--n-heads and --ffn-size.",
    "type_optimization": "Default: all_encoder_layers for a pre-trained encoder, else all.",
    "hard_negatives": "They are mined among the labels seen so far in this run.",
    "teacher_scores": "Default: MODEL_FILE.teacher.sqlite.",
    "vocabulary": "Default: the vocabulary is trained on the training task: subwords that occur at least "
    "--dict-minfreq times if given (250 in the paper), else about --dict-maxtokens of them (31476).",
}
"""Additions to the help that apply only to ParlAI's loop."""

LOG_EVERY = 20.0  # seconds
BATCH_SIZE = 32  # of training; the paper's 16 for a cross-encoder, which reads each candidate with its context
PAIR_BATCH_SIZE = 16


def set_training_defaults(parser: ParlaiParser, partial_opt: Opt | None, **defaults: Any) -> None:
    """Sets defaults of ParlAI's training scripts, such as `--batchsize`, as a batch of 1 has no negatives.

    Other scripts keep 1, which `display_model` and `interactive` need. Training logs every 20 seconds, not only every
    50 updates; in a process group, which would have to synchronize for that, only by updates.
    """
    if "num_epochs" in (partial_opt or {}):
        alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
        parser.set_defaults(**({"log_every_n_secs": LOG_EVERY} if alone else {}), **defaults)


def fill_in_defaults(agent: type[Agent], opt: dict[str, Any]) -> None:
    """Sets missing options to the flags' defaults: options made in Python, or before a flag was added, lack some."""
    for name, value in collect_flag_defaults(agent).items():
        opt.setdefault(name, value)


@cache
def collect_flag_defaults(agent: type[Agent]) -> dict[str, Any]:
    """The options that an agent's flags set, and their defaults."""
    parser = ParlaiParser(add_parlai_args=False, add_model_args=False)
    agent.add_cmdline_args(parser, Opt())
    return vars(ArgumentParser.parse_args(parser, []))


def add_ranker_args(parser: ParlaiParser, architecture: Architecture, *, without: Collection[str] = ()) -> None:
    """Adds the flags of all trained rankers: the settings of their architecture, and ParlAI's own."""
    has_vectors = get_family(architecture).can.has_vectors
    add_settings(parser, TrainSettings, architecture=architecture, without=without, notes=NOTES)
    add_settings(parser, EvaluateSettings, panel="Evaluation")
    parser.add_argument_group("Candidates and answers").add_argument(
        "--add-label-to-fixed-cands",
        type="bool",
        default=False,
        help="With fixed candidates: add a label that is not among them to the candidates of its own example, as in "
        "article search.",
    )
    answers = [] if has_vectors else ["rerank", "rerank_k"]
    add_settings(parser, ServerConfig, without=answers, panel="Candidates and answers")
    parser.set_defaults(**DEFAULTS)
    if has_vectors:
        _add_index_args(parser)


def _add_index_args(parser: ParlaiParser) -> None:
    group = parser.add_argument_group("Search arguments")
    group.add_argument(
        "--index",
        type=str,
        default=None,
        help="Search this index, which `polyencoder index` built with the same model, instead of scoring all fixed "
        "candidates: a folder, or an address, milvus:... or postgres://.... Evaluation and conversation then take "
        "their candidates from it, as with --eval-candidates fixed.",
    )
    group.add_argument(
        "--index-top-k",
        type=int,
        default=100,
        help="How many candidates a search returns. A label that is not among them counts as not found: mrr@K and RN@K "
        "carry this in their names, and hits@k for a larger k is a lower bound.",
    )
    add_settings(parser, SearchOptions, without=["top_k", *get_option_names(AnswerOptions)], panel="Search arguments")


def add_encoder_args(parser: ParlaiParser, architecture: Architecture, partial_opt: Opt | None = None) -> None:
    """Adds the flags of rankers with a backbone, with the paper's values as defaults."""
    TransformerRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_ranker_args(parser, architecture)
    parser.set_defaults(**PAPER_DEFAULTS | OF_AN_ARCHITECTURE.get(architecture, {}))
    set_training_defaults(parser, partial_opt, batchsize=PAIR_BATCH_SIZE if architecture == "cross" else BATCH_SIZE)
