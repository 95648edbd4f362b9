"""The keyword baseline of ConveRT's paper on a task of ParlAI: candidates by the cosine of TF-IDF vectors.

    python -m benchmarks.reproduce.tfidf --task selection:reddit --datatype test --datapath DATA

prints one JSON object with recalls and MRR. Weights come from the training labels; of a context the last line is
compared, the utterance after a persona, or with `--whole-context` all of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from benchmarks.agents import open_teacher
from polyencoder.data.example import Example
from polyencoder.evaluation.tfidf import evaluate_tfidf

MAX_LABELS = 1_000_000  # training labels that the weights are fitted to


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, help="a task whose examples have candidates of their own")
    parser.add_argument("--datatype", default="valid")
    parser.add_argument("--datapath", help="default: ParlAI's")
    parser.add_argument("--selection-file", help="read this file, not the task's own, for the weights too")
    parser.add_argument("--num-examples", type=int, help="evaluate only this many")
    parser.add_argument("--whole-context", action="store_true", help="compare the whole context, not its last line")
    flags = parser.parse_args(arguments)
    options = {name: getattr(flags, name) for name in ("datapath", "selection_file") if getattr(flags, name)}
    training = _iter_messages(flags.task, datatype="train:ordered:stream", **options)
    labels = islice((label for message in training for label in message.get("labels") or ()), MAX_LABELS)
    evaluated = islice(_iter_messages(flags.task, datatype=flags.datatype, **options), flags.num_examples)
    examples = [_build_example(message, whole=flags.whole_context) for message in evaluated]
    print(json.dumps({"examples": len(examples), **evaluate_tfidf(labels, examples)}))


def _iter_messages(task: str, **options: Any) -> Iterator[dict[str, Any]]:
    """Yields the messages of an epoch."""
    teacher = open_teacher(task, **options)
    try:
        while not teacher.epoch_done():
            yield teacher.act()
    finally:
        teacher.shutdown()


def _build_example(message: dict[str, Any], *, whole: bool) -> Example:
    text, (label, *_) = message["text"], message.get("labels") or message["eval_labels"]
    lines = [line for line in text.split("\n") if line.strip()]
    return Example([text if whole or not lines else lines[-1]], label, list(message["label_candidates"]))


if __name__ == "__main__":
    main()
