"""The command line of every ranker: ParlAI's flags for what ParlAI has, a few of our own."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from functools import cache
from typing import Any

from parlai.core.agents import Agent
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

DEFAULTS = {
    "candidates": "batch",
    "eval_candidates": "inline",
    "validation_every_n_epochs": 0.5,
    "save_after_valid": True,  # a run that is killed goes on from there
}
"""Of ParlAI's flags, for every ranker."""

LOG_EVERY = 20.0  # seconds
MAX_NONFINITE = 5  # updates in a row


BATCH_SIZE = 32  # of training; a cross-encoder, which reads each candidate with its context, has the paper's 16
PAIR_BATCH_SIZE = 16


def set_training_defaults(parser: ParlaiParser, partial_opt: Opt | None, **defaults: Any) -> None:
    """The defaults of flags of ParlAI's training scripts, such as `--batchsize`, whose 1 leaves no negative in a batch.

    Other scripts keep that 1: `display_model` and `interactive` need it. The log says how training goes every 20
    seconds, not only every 50 updates; in a group of processes, which would have to meet for that, by updates alone.
    """
    if "num_epochs" in (partial_opt or {}):
        alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
        parser.set_defaults(**({"log_every_n_secs": LOG_EVERY} if alone else {}), **defaults)


def fill_in_defaults(agent: type[Agent], opt: dict[str, Any]) -> None:
    """Put the defaults of an agent's flags into options that lack them.

    Those lack some that were written in Python, by ParlAI's own agents, or before a flag was there.
    """
    for name, value in _defaults(agent).items():
        opt.setdefault(name, value)


@cache
def _defaults(agent: type[Agent]) -> dict[str, Any]:
    parser = ParlaiParser(add_parlai_args=False, add_model_args=False)
    agent.add_cmdline_args(parser, Opt())
    return vars(ArgumentParser.parse_args(parser, []))


def add_hits_at(group: Any) -> None:
    """Add what all agents have whose reports have recalls, to a group of arguments."""
    group.add_argument(
        "--hits-at",
        type=str,
        default="1,5,10",
        help="Values of k for the metrics RN@k (R20@1: among 20 candidates) and hits@k, separated by commas.",
    )


def add_learning_args(parser: ParlaiParser) -> None:
    """Add what all agents have that learn, beside ParlAI's flags."""
    group = parser.add_argument_group("Learning arguments")
    group.add_argument(
        "--bf16",
        type="bool",
        default=False,
        help="Compute in bfloat16 where that is safe (autocast); the weights stay in float32. Faster on GPUs, and on "
        "CPUs with bfloat16 instructions.",
    )
    group.add_argument(
        "--final-learning-rate",
        type=float,
        default=None,
        help="The learning rate at the run's last update with --lr-scheduler linear or cosine. Default: 0.",
    )
    group.add_argument(
        "--embedding-clip",
        type=float,
        default=None,
        help="Maximum gradient norm of each embedding table by itself, applied before --gradient-clip; 0 for no limit. "
        "Weight decay then applies only to the rows that a batch looked up.",
    )
    group.add_argument(
        "--max-nonfinite",
        type=int,
        default=MAX_NONFINITE,
        help="End training with an error after this many updates in a row whose loss or gradients are nan or infinite. "
        "Such updates are skipped and counted (nonfinite_updates).",
    )


def add_ranker_args(parser: ParlaiParser) -> None:
    """Add what all rankers have that learn."""
    add_learning_args(parser)
    group = parser.add_argument_group("Ranker arguments")
    group.add_argument(
        "--add-label-to-fixed-cands",
        type="bool",
        default=False,
        help="With fixed candidates: add a label that is not among them to the candidates of its own example, as in "
        "article search.",
    )
    group.add_argument(
        "--label-smoothing",
        type=float,
        default=None,
        help="Label smoothing: the probability mass shared by an example's wrong candidates; the right one has the "
        "rest. Default: 0.",
    )
    add_hits_at(group)
    group.add_argument(
        "--gather-negatives",
        type="bool",
        default=True,
        help="With several processes and --candidates batch or batch-all-cands: rank each example among the candidates "
        "of all processes, as one process with all of the examples would.",
    )
    group.add_argument(
        "--min-probability",
        type=str,
        default=None,
        help="Leave out answers that are less likely than this to be right: 0 to 1, or auto for the precision that the "
        "model was calibrated for (`polyencoder calibrate`). Metrics of ranks are unaffected.",
    )
    group.add_argument(
        "--no-answer",
        type=str,
        default="I have no good answer to that.",
        help="The reply if --min-probability leaves no answer.",
    )
    parser.set_defaults(**DEFAULTS)


def add_cache_args(parser: ParlaiParser) -> None:
    """Add what the models have whose contexts and candidates go through the encoder one by one."""
    group = parser.add_argument_group("Memory arguments")
    group.add_argument(
        "--grad-cache",
        type=int,
        default=0,
        help="Gradient caching: train with the memory of this many contexts of --text-truncate tokens, whatever the "
        "batch size. A batch goes through the encoder in pieces, twice; gradients are the same, at the cost of one "
        "more forward pass. 0: off.",
    )


def add_pair_args(parser: ParlaiParser) -> None:
    """Add what the cross-encoder alone has."""
    group = parser.add_argument_group("Memory arguments")
    group.add_argument(
        "--pair-tokens",
        type=int,
        default=0,
        help="Train with the memory of this many tokens, however many pairs of context and candidate a batch has. "
        "Pairs of similar length go through the encoder together, twice; gradients are the same, at the cost of one "
        "more forward pass. 0: off.",
    )


def add_index_args(parser: ParlaiParser) -> None:
    """Add what the models have whose candidates can be put into an index."""
    group = parser.add_argument_group("Search arguments")
    group.add_argument(
        "--index",
        type=str,
        default=None,
        help="Search this index, which `polyencoder index` built with the same model, instead of scoring all fixed "
        "candidates: a folder, or milvus: and the address of a server or file. Evaluation and conversation then take "
        "their candidates from it, as with --eval-candidates fixed.",
    )
    group.add_argument(
        "--index-top-k",
        type=int,
        default=100,
        help="How many candidates a search returns. A label that is not among them counts as not found: mrr@K and RN@K "
        "carry this in their names, and hits@k for a larger k is a lower bound.",
    )
    group.add_argument(
        "--index-effort",
        type=int,
        default=None,
        help="Search effort of the FAISS index of --index: ef_search of hnsw, nprobe of ivf. Default: as it was built.",
    )
    group.add_argument(
        "--index-list-length",
        type=int,
        default=None,
        help="How many candidates each code, or group of similar codes, proposes in a search that does not score every "
        "candidate. Default: four times --index-top-k, at least 256.",
    )
    group.add_argument(
        "--index-dtype",
        type=str,
        default=None,
        choices=["float32", "bfloat16"],
        help="Precision of a search that scores every candidate. bfloat16 is faster if the processor supports it and "
        "the vectors are stored so; the choice is then approximate, the scores exact. Default: float32.",
    )
    group.add_argument(
        "--rerank",
        type=str,
        default=None,
        help="A cross-encoder (model file, folder or hub id) that reranks the first --rerank-k results of --index.",
    )
    group.add_argument("--rerank-k", type=int, default=50, help="How many results --rerank reranks.")


def add_distillation_args(parser: ParlaiParser) -> None:
    """Add what the models have that learn another model's scores."""
    group = parser.add_argument_group("Distillation arguments")
    group.add_argument(
        "--teacher-model",
        type=str,
        default=None,
        help="Also learn the scores of this ranker, usually a cross-encoder: a model file, folder or hub id.",
    )
    group.add_argument(
        "--distillation-weight",
        type=float,
        default=0.5,
        help="Weight of the teacher's loss, from 0 to 1; the labels' loss has the rest.",
    )
    group.add_argument(
        "--distillation-loss",
        type=str,
        default="kl",
        choices=["kl", "margin-mse"],
        help="kl: the Kullback-Leibler divergence between the two softmaxes over the candidates. margin-mse: the mean "
        "squared difference of the margins between the label and the other candidates.",
    )
    group.add_argument(
        "--distillation-temperature",
        type=float,
        default=1.0,
        help="Divides both models' scores in --distillation-loss kl; higher values emphasize the lower scores.",
    )
    group.add_argument(
        "--distillation-candidates",
        type=int,
        default=0,
        help="How many candidates of each example the teacher scores: the label and those that the student ranks "
        "highest. 0 for all, which with --candidates batch is the square of the batch size.",
    )
    group.add_argument(
        "--teacher-scores",
        type=str,
        default=None,
        help="The file in which the teacher's scores are cached, so that no pair of texts is scored twice; several "
        "runs may share it. Default: MODEL_FILE.teacher.sqlite.",
    )


def add_hard_negative_args(parser: ParlaiParser) -> None:
    """Add what the models have whose candidates can be put into an index, in training."""
    group = parser.add_argument_group("Hard negatives")
    group.add_argument(
        "--hard-negatives",
        type=int,
        default=0,
        help="With --candidates batch: how many hard negatives to add to the batch for each example: wrong answers "
        "that the model ranks high, mined among the labels seen so far in this run.",
    )
    group.add_argument(
        "--hard-negatives-every",
        type=int,
        default=1000,
        help="Updates after which the labels seen so far are indexed, first and again. The number of examples divided "
        "by the batch size means once per epoch.",
    )
    group.add_argument(
        "--hard-negative-ranks",
        type=str,
        default="1-100",
        help="Ranks among the wrong answers, best first, to draw from, such as 10-100: the very best are often right.",
    )
    group.add_argument(
        "--hard-negative-margin",
        type=float,
        default=None,
        help="Leave out those that score above the label's score minus this: they are likely to be right, too.",
    )
