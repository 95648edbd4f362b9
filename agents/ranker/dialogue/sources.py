"""Candidate sources: `--candidates` and `--eval-candidates`, settled before anything is built."""

from __future__ import annotations

import parlai.utils.logging as logging
from parlai.core.opt import Opt
from parlai.utils.distributed import num_workers

from polyencoder.errors import ConfigError, InputError

INDEX = "index"
"""The value of `eval_candidates` with `--index`, which replaces fixed candidates."""
DRAWN = ("inline", "batch-all-cands")  # sources for which a task samples missing candidates
WITHOUT_NEGATIVES = "without_negatives"
"""The metric that counts skipped examples, whose label is the only candidate of their batch."""
_ALONE = "takes the other labels of the batch as wrong answers, and {flag} 1 leaves none: give {flag} 2 or more"


def is_training_script(opt: Opt) -> bool:
    """Whether these are options of ParlAI's training script (including its evaluations), by an option of its own."""
    return opt.get("load_from_checkpoint") is not None and "train" in (opt.get("datatype") or "")


def evaluation_source(opt: Opt) -> str | None:
    """The source of an evaluation's candidates by these options; None if unspecified."""
    return INDEX if opt.get("index") else opt.get("eval_candidates")


def check_sources(opt: Opt, *, in_loop: bool) -> None:
    """Sets the candidate sources in the options; ConfigError for sources without negatives, or a flag without effect.

    `--eval-candidates batch` in training applies to its validations. Later evaluations of the model use inline
    candidates unless it is given again. `in_loop`: training begins with these options.
    """
    for name in ("eval_candidates", "interactive_candidates"):
        if opt.get(name) == "vocab":
            raise ConfigError(
                f"--{name.replace('_', '-')} vocab: words of a vocabulary are not replies; use inline, batch or fixed"
            )
    given = opt.get("override") or {}
    if opt.get("index"):
        if given.get("eval_candidates", "fixed") != "fixed":
            raise ConfigError(f"--index replaces fixed candidates, not --eval-candidates {given['eval_candidates']}")
        opt.update(candidates=INDEX, eval_candidates=INDEX, interactive_candidates=INDEX)
    in_script = is_training_script(opt)
    evaluates = not (in_script or opt.get("interactive_mode"))
    if evaluates and opt["eval_candidates"] == "batch" and "eval_candidates" not in given:
        logging.info("inline candidates: --eval-candidates batch of the training applies only if given again")
        opt["eval_candidates"] = "inline"
    if in_loop:
        _check_batch_size(opt)
    sources = {"candidates": opt["candidates"]} if in_script else {}
    sources["eval_candidates"] = opt["eval_candidates"]
    if given.get("num_negatives") is not None and not {*sources.values()} & {*DRAWN}:
        flags = " and ".join(
            "--index" if source == INDEX else f"--{name.replace('_', '-')} {source}" for name, source in sources.items()
        )
        raise ConfigError(f"--num-negatives {given['num_negatives']} has no effect with {flags}; use inline candidates")


def _check_batch_size(opt: Opt) -> None:
    size, eval_size = opt.get("batchsize") or 1, opt.get("eval_batchsize")
    joined = num_workers() > 1 and opt.get("gather_negatives")
    if opt["candidates"] == "batch" and size == 1 and not joined and not opt.get("hard_negatives"):
        raise ConfigError(f"--candidates batch {_ALONE.format(flag='--batchsize')}, or --candidates inline")
    if opt["eval_candidates"] == "batch" and (eval_size or size) == 1:
        flag = "--eval-batchsize" if eval_size else "--batchsize"
        raise ConfigError(f"--eval-candidates batch {_ALONE.format(flag=flag)}, or --eval-candidates inline")


def no_negatives_error(source: str) -> InputError:
    """The error of an evaluation whose first batch has one example, so that its label is the only candidate."""
    return InputError(
        f"--eval-candidates {source}: a batch of one example has one candidate, its own label, and nothing to choose; "
        "give --eval-candidates fixed and --fixed-candidates-path FILE or, in eval_model, --batchsize 2 or more"
    )
