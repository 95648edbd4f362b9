"""The command line of every ranker: ParlAI's flags for what ParlAI has, a few of our own."""

from __future__ import annotations

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

MAX_NONFINITE = 5  # updates in a row


BATCH_SIZE = 32  # of training; a cross-encoder, which reads each candidate with its context, has the paper's 16
PAIR_BATCH_SIZE = 16


def set_training_defaults(parser: ParlaiParser, partial_opt: Opt | None, **defaults: Any) -> None:
    """The defaults of flags of ParlAI's training scripts, such as `--batchsize`, whose 1 leaves no negative in a batch.

    Other scripts keep that 1: `display_model` and `interactive` need it.
    """
    if "num_epochs" in (partial_opt or {}):
        parser.set_defaults(**defaults)


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
        help="The k of the metrics RN@k (R20@1: among 20 candidates) and hits@k, separated by commas.",
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
        help="Where --lr-scheduler linear and cosine end, with the run's last update. Default: at 0.",
    )
    group.add_argument(
        "--embedding-clip",
        type=float,
        default=None,
        help="The largest norm of the gradients of each table of embeddings by itself, before --gradient-clip; 0 for "
        "no limit. Their weight decay is then that of the rows that a batch looked up.",
    )
    group.add_argument(
        "--max-nonfinite",
        type=int,
        default=MAX_NONFINITE,
        help="An update whose loss or gradients are nan or infinite is left out and counted (nonfinite_updates); this "
        "many in a row end training with an error.",
    )


def add_ranker_args(parser: ParlaiParser) -> None:
    """Add what all rankers have that learn."""
    add_learning_args(parser)
    group = parser.add_argument_group("Ranker arguments")
    group.add_argument(
        "--add-label-to-fixed-cands",
        type="bool",
        default=False,
        help="With fixed candidates: a label that is not among them is one more candidate of its own example, as in "
        "article search.",
    )
    group.add_argument(
        "--label-smoothing",
        type=float,
        default=None,
        help="The probability that an example's wrong candidates share in what is learnt; the right one has the rest. "
        "Default: 0.",
    )
    add_hits_at(group)
    group.add_argument(
        "--gather-negatives",
        type="bool",
        default=True,
        help="With several processes and --candidates batch or batch-all-cands: the candidates of all processes are "
        "candidates of every example, as they would be in one process with all of the examples.",
    )
    group.add_argument(
        "--min-probability",
        type=str,
        default=None,
        help="Leave out answers that are less likely the right one, 0 to 1, or auto: the threshold for the precision "
        "that the model was calibrated for, by `polyencoder calibrate`. Ranks are counted as without it.",
    )
    group.add_argument(
        "--no-answer",
        type=str,
        default="I have no good answer to that.",
        help="What is said when --min-probability leaves nothing.",
    )
    parser.set_defaults(**DEFAULTS)


def add_cache_args(parser: ParlaiParser) -> None:
    """Add what the models have whose contexts and candidates go through the encoder one by one."""
    group = parser.add_argument_group("Memory arguments")
    group.add_argument(
        "--grad-cache",
        type=int,
        default=0,
        help="Train with the memory of this many contexts of --text-truncate tokens, whatever the batch size: a batch "
        "goes through the encoder in pieces with as many tokens, and again to compute gradients, which stay the same "
        "(gradient caching). It costs one more forward pass. 0: all at once.",
    )


def add_pair_args(parser: ParlaiParser) -> None:
    """Add what the cross-encoder alone has."""
    group = parser.add_argument_group("Memory arguments")
    group.add_argument(
        "--pair-tokens",
        type=int,
        default=0,
        help="Train with the memory of this many tokens, however many pairs of context and candidate a batch has: "
        "pairs of like length go through the encoder together, at most so many tokens at a time, and again to compute "
        "gradients, which stay the same. It costs one more forward pass. 0: all at once.",
    )


def add_index_args(parser: ParlaiParser) -> None:
    """Add what the models have whose candidates can be put into an index."""
    group = parser.add_argument_group("Search arguments")
    group.add_argument(
        "--index",
        type=str,
        default=None,
        help="Search this index, which `polyencoder index` made of the same model, instead of scoring all of the fixed "
        "candidates: a folder, or milvus: and the address of a server or file. Evaluation and conversation then take "
        "their candidates from it, as with --eval-candidates fixed.",
    )
    group.add_argument(
        "--index-top-k",
        type=int,
        default=100,
        help="How many candidates a search gives. Metrics count a label that is not among them as not found: mrr@K and "
        "RN@K say so by their names, and hits@k of a larger k is a lower bound.",
    )
    group.add_argument(
        "--index-effort",
        type=int,
        default=None,
        help="How hard the FAISS index of --index looks: ef_search of hnsw, nprobe of ivf. Default: as it was built.",
    )
    group.add_argument(
        "--index-list-length",
        type=int,
        default=None,
        help="How many candidates each code, or group of codes that are alike, proposes to a search that does not "
        "score everything. Default: four times --index-top-k, at least 256.",
    )
    group.add_argument(
        "--index-dtype",
        type=str,
        default=None,
        choices=["float32", "bfloat16"],
        help="Of a search that scores everything: bfloat16 is faster where processors have it and the index's vectors "
        "are stored so. It then chooses, scores stay exact, and what is found is approximate. Default: float32.",
    )
    group.add_argument(
        "--rerank",
        type=str,
        default=None,
        help="A cross-encoder (model file, folder or hub id), which orders the first --rerank-k of what --index finds.",
    )
    group.add_argument("--rerank-k", type=int, default=50, help="How many candidates --rerank reads.")


def add_distillation_args(parser: ParlaiParser) -> None:
    """Add what the models have that learn another model's scores."""
    group = parser.add_argument_group("Distillation arguments")
    group.add_argument(
        "--teacher-model",
        type=str,
        default=None,
        help="Learn the scores of this ranker too: a model file, folder or hub id, as a rule of a cross-encoder.",
    )
    group.add_argument(
        "--distillation-weight",
        type=float,
        default=0.5,
        help="Of the teacher's loss, from 0 to 1; the rest is the weight of the labels' loss.",
    )
    group.add_argument(
        "--distillation-loss",
        type=str,
        default="kl",
        choices=["kl", "margin-mse"],
        help="kl: the Kullback-Leibler divergence of the two softmaxes over the candidates. margin-mse: the mean "
        "square of how much the margins between the label and the others differ.",
    )
    group.add_argument(
        "--distillation-temperature",
        type=float,
        default=1.0,
        help="Divides both models' scores in --distillation-loss kl: higher, and more is learnt of the lower scores.",
    )
    group.add_argument(
        "--distillation-candidates",
        type=int,
        default=0,
        help="Ask the teacher about so many candidates of each example: the label and those that the learning model "
        "ranks highest. 0 for all: with --candidates batch that is the square of the batch size.",
    )
    group.add_argument(
        "--teacher-scores",
        type=str,
        default=None,
        help="The file that keeps the teacher's scores, so that it scores no pair of texts twice; several runs may "
        "share it. Default: beside the model, MODEL_FILE.teacher.sqlite.",
    )


def add_hard_negative_args(parser: ParlaiParser) -> None:
    """Add what the models have whose candidates can be put into an index, in training."""
    group = parser.add_argument_group("Hard negatives")
    group.add_argument(
        "--hard-negatives",
        type=int,
        default=0,
        help="With --candidates batch: how many wrong answers that the model so far ranks high join the batch for each "
        "example, mined among the labels that it has been trained on in this run.",
    )
    group.add_argument(
        "--hard-negatives-every",
        type=int,
        default=1000,
        help="After how many updates the labels seen so far are indexed, for the first time and anew. For once an "
        "epoch, the number of examples divided by the batch size.",
    )
    group.add_argument(
        "--hard-negative-ranks",
        type=str,
        default="1-100",
        help="Which of the wrong answers, best first, are taken from, such as 10-100: the very best are often right.",
    )
    group.add_argument(
        "--hard-negative-margin",
        type=float,
        default=None,
        help="Leave out those that score above the label's score less this: they are too likely to be right.",
    )
