"""Chooses the sources of candidates from the options: `--candidates`, `--eval-candidates`, `--index`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.dialogue.fixed import FixedSource
from parlai.agents.ranker.dialogue.indexed import IndexSource
from parlai.agents.ranker.dialogue.listed import InBatchSource, OwnSource
from parlai.agents.ranker.dialogue.sources import Source
from parlai.agents.ranker.options import select_explicit_flags
from parlai.agents.ranker.settings import format_flag, get_option_names
from parlai.core.opt import Opt
from parlai.utils.distributed import num_workers

from polyencoder.calibration import AnswerOptions
from polyencoder.checks import hide_password
from polyencoder.data.collator import OWN_CANDIDATES
from polyencoder.errors import ConfigError
from polyencoder.index.options import SearchOptions

INDEX = "index"
"""The value of `eval_candidates` with `--index`, which replaces fixed candidates."""
OF_FIXED = ("fixed_candidates_path", "fixed_candidate_vecs", "add_label_to_fixed_cands")
"""Options that only fixed candidates have."""
_ALONE = "takes the other labels of the batch as wrong answers, and {flag} 1 leaves none: give {flag} 2 or more"


def is_training_script(opt: Opt) -> bool:
    """Whether these are options of ParlAI's training script (or its evaluations), which alone has this option."""
    return opt.get("load_from_checkpoint") is not None and "train" in (opt.get("datatype") or "")


def check_index_options(opt: Opt) -> None:
    """Raises ConfigError for options that need an index, or contradict one."""
    if not opt.get("index"):
        without_index = {"index_top_k", *get_option_names(AnswerOptions)}
        for name in ("rerank", "rerank_k", *get_option_names(SearchOptions).values()):
            if name not in without_index and opt.get(name) not in (None, False):
                raise ConfigError(f"{format_flag(name)} {opt[name]}: is an option of searches, so it needs --index")
        return
    if is_training_script(opt):
        raise ConfigError(
            f"--index {hide_password(opt['index'])}: was built by the model before this training; leave it out here"
        )
    if opt.get("index_top_k", 1) < 1:
        raise ConfigError(f"--index-top-k {opt['index_top_k']}: must be at least 1")
    for name in get_option_names(AnswerOptions) if opt.get("index_words_only") else ():
        if opt.get(name) is not None:
            raise ConfigError(f"{format_flag(name)} is for searches by vectors: leave it or --index-words-only out")
    if opt.get("add_label_to_fixed_cands"):
        raise ConfigError("--add-label-to-fixed-cands cannot be used with --index: add the labels to the index")


def check_sources(opt: Opt, *, in_loop: bool) -> None:
    """Sets the candidate sources in the options; ConfigError for sources without negatives, or a flag without effect.

    `--eval-candidates batch` in training applies to its validations. Later evaluations of the model use inline
    candidates unless it is given again. `in_loop`: training begins with these options.
    """
    explicit = select_explicit_flags(opt)
    if opt.get("index"):
        if explicit.get("eval_candidates", "fixed") != "fixed":
            raise ConfigError(f"--index replaces fixed candidates, not --eval-candidates {explicit['eval_candidates']}")
        opt.update(candidates=INDEX, eval_candidates=INDEX, interactive_candidates=INDEX)
    named, source = explicit.get("eval_candidates"), opt.get("interactive_candidates", "fixed")
    if opt.get("interactive_mode") and not opt.get("index") and named not in (None, source):
        by = " (--interactive-candidates)" if "interactive_candidates" in opt else ""
        logging.warning(f"--eval-candidates {named} is not read in a conversation, whose candidates are {source}{by}")
    in_script = is_training_script(opt)
    evaluates = not (in_script or opt.get("interactive_mode"))
    if evaluates and opt["eval_candidates"] == "batch" and "eval_candidates" not in explicit:
        logging.info("inline candidates: --eval-candidates batch of the training applies only if given again")
        opt["eval_candidates"] = "inline"
    if in_loop:
        _check_batch_size(opt)
    if not in_script:
        _warn_of_unread(opt, explicit)
    sources = {"candidates": opt["candidates"]} if in_script else {}
    sources["eval_candidates"] = opt["eval_candidates"]
    if explicit.get("num_negatives") is not None and not {*sources.values()} & {*OWN_CANDIDATES}:
        flags = " and ".join(
            "--index" if source == INDEX else f"{format_flag(name)} {source}" for name, source in sources.items()
        )
        raise ConfigError(
            f"--num-negatives {explicit['num_negatives']} has no effect with {flags}; use inline candidates"
        )


def _warn_of_unread(opt: Opt, explicit: Mapping[str, Any]) -> None:
    """Warns of flags of fixed candidates where answers have others. In training they are kept for conversations."""
    chooses = "interactive_candidates" if opt.get("interactive_mode") else "eval_candidates"
    source = opt.get(chooses, "fixed")
    if source == "fixed":
        return
    choice, remedy = f"{format_flag(chooses)} {source}", f"give {format_flag(chooses)} fixed, or leave it out"
    if source == INDEX:
        choice, remedy = "--index", "leave it out"
    for name in OF_FIXED:
        if explicit.get(name) not in (None, False, "reuse"):
            logging.warning(f"{format_flag(name)} {explicit[name]} is not read with {choice}: {remedy}")


def _check_batch_size(opt: Opt) -> None:
    size, eval_size = opt.get("batchsize") or 1, opt.get("eval_batchsize")
    joined = num_workers() > 1 and opt.get("gather_negatives")
    if opt["candidates"] == "batch" and size == 1 and not joined and not opt.get("hard_negatives"):
        raise ConfigError(f"--candidates batch {_ALONE.format(flag='--batchsize')}, or --candidates inline")
    if opt["eval_candidates"] == "batch" and (eval_size or size) == 1:
        size_flag = "--eval-batchsize" if eval_size else "--batchsize"
        raise ConfigError(f"--eval-candidates batch {_ALONE.format(flag=size_flag)}, or --eval-candidates inline")


SOURCES = {"fixed": FixedSource, INDEX: IndexSource, **dict.fromkeys(OWN_CANDIDATES, OwnSource)}


def build_source(name: str, opt: Opt) -> Source:
    """The source that an option names. Fixed candidates are read."""
    return SOURCES.get(name, InBatchSource)(name, opt)
