"""The command line of `-m tfidf`."""

from __future__ import annotations

from parlai.agents.ranker.args import add_hits_at
from parlai.core.params import ParlaiParser


def add_tfidf_args(parser: ParlaiParser) -> None:
    """Adds the flags shared with other rankers, and three of its own."""
    group = parser.add_argument_group("TF-IDF arguments")
    group.add_argument(
        "--tfidf-context",
        type=str,
        default="last",
        choices=["last", "all"],
        help="What is compared with the candidates: the last line, or the whole context with the persona.",
    )
    group.add_argument("--tfidf-ngrams", type=int, default=1, help="Also count sequences of up to this many words.")
    group.add_argument(
        "--tfidf-max-examples",
        type=int,
        default=1_000_000,
        help="Fit word weights to this many labels, the first of the training data.",
    )
    group.add_argument(
        "-ecands",
        "--eval-candidates",
        type=str,
        default="inline",
        choices=["batch", "inline", "fixed", "batch-all-cands"],
        help="The source of candidates; in interactive mode it is fixed.",
    )
    group.add_argument(
        "-fcp", "--fixed-candidates-path", type=str, default=None, help="A file of fixed candidates, one a line."
    )
    group.add_argument(
        "--add-label-to-fixed-cands",
        type="bool",
        default=False,
        help="With fixed candidates: add a label that is not among them to the candidates of its own example.",
    )
    group.add_argument(
        "--ignore-bad-candidates",
        type="bool",
        default=False,
        help="Skip and count examples without candidates, or whose label is not among them, instead of an error.",
    )
    add_hits_at(parser)
    group.add_argument(
        "--cap-num-predictions", type=int, default=100, help="How many of the best candidates an answer lists."
    )
    group.add_argument("--return-cand-scores", type="bool", default=False, help="List their scores, too.")
    # The weights are fitted before the first step. The teacher need not look for candidates.
    parser.set_defaults(max_train_steps=1, candidates="batch")
