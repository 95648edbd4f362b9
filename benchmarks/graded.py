"""Measures what several right candidates are worth in training, and which objective uses them best.

    python -m benchmarks.graded --datapath ../shared/data --json

A query is a question of BANKING77, and the right candidates are questions with the same intent. Each row trains an
encoder for `--updates` updates on lists of the training questions, of 4 right candidates and 8 wrong ones, or of one of
the 4 and the same wrong ones. It is tested by nDCG@10 on questions of the test set, each with 10 right candidates and
90 wrong ones of that set.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from polyencoder.data.example import Example
from polyencoder.evaluation import evaluate
from polyencoder.ranker.ranker import Ranker
from polyencoder.training import TrainSettings, train_ranker

RIGHT, WRONG = 4, 8
BATCH = 8
SYSTEMS = (
    ("softmax, one right candidate", "softmax", 1),
    ("softmax", "softmax", RIGHT),
    ("ranknet", "ranknet", RIGHT),
    ("listnet", "listnet", RIGHT),
    ("lambdaloss", "lambdaloss", RIGHT),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="the folder of banking77/")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--tested", type=int, default=400, help="test questions")
    parser.add_argument("--updates", type=int, default=48, help="of 8 lists each")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    tested, updates = (20, 2) if flags.quick else (flags.tested, flags.updates)
    encoder = str(flags.backbone or minilm_folder())
    train, test = (questions(flags.datapath / "banking77" / f"{part}.csv") for part in ("train", "test"))
    parts = {
        "train": lists(train, count=updates * BATCH, right=RIGHT, wrong=WRONG),
        "valid": lists(train, count=40, right=RIGHT, wrong=WRONG, seed=1),
        "test": lists(test, count=tested, right=10, wrong=90),
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(encoder, parts, Path(folder), updates=updates, seed=flags.seed))
    found = {row["system"]: row["nDCG@10"] for row in rows}
    report = {
        "benchmark": "graded",
        "machine": machine(),
        "settings": {"encoder": encoder, "tested": tested, "updates": updates, "batch": BATCH, "seed": flags.seed},
        "rows": rows,
        "summary": {"gained by several": found["softmax"] - found["softmax, one right candidate"]},
    }
    print_report(report, as_json=flags.json)


def questions(path: Path) -> dict[str, list[str]]:
    """The distinct questions of each intent."""
    found: dict[str, list[str]] = defaultdict(list)
    with open(path, encoding="utf-8", newline="") as file:
        for text, intent in list(csv.reader(file))[1:]:
            if (text := text.strip()) not in found[intent]:
                found[intent].append(text)
    return dict(found)


def lists(intents: dict[str, list[str]], *, count: int, right: int, wrong: int, seed: int = 0) -> list[Example]:
    """Questions, each with other ones of its intent and of all others, in random order."""
    rng, made = random.Random(seed), []
    names = [name for name, texts in intents.items() if len(texts) > right]
    for _ in range(count):
        intent = rng.choice(names)
        query, *same = rng.sample(intents[intent], right + 1)
        others = rng.sample([text for name, texts in intents.items() if name != intent for text in texts], wrong)
        candidates = rng.sample([*same, *others], right + wrong)
        made.append(Example.graded([query], candidates, [int(text in same) for text in candidates]))
    return made


def measure(
    encoder: str, parts: dict[str, list[Example]], folder: Path, *, updates: int, seed: int
) -> Iterator[dict[str, Any]]:
    """The rows of the report, the first of them before training."""

    def row(system: str, ranker: Ranker, seconds: float = 0.0) -> dict[str, Any]:
        report = evaluate(ranker, parts["test"]).report()
        return {
            "system": system,
            "nDCG@10": report["nDCG@10"],
            "hits@1": report["hits@1"],
            "processor_seconds": seconds,
        }

    yield row("before training", Ranker.load(encoder))
    for system, objective, right in SYSTEMS:
        out = folder / system.replace(" ", "-")
        for part in ("train", "valid"):
            write(folder / f"{part}.jsonl", parts[part], right=right if part == "train" else RIGHT)
        start = time.process_time()
        settings: dict[str, Any] = {part: str(folder / f"{part}.jsonl") for part in ("train", "valid")}
        settings |= {
            "out": str(out),
            "backbone": encoder,
            "architecture": "bi",
            "objective": objective,
            "candidates": "inline",
        }
        settings |= {"max_updates": updates, "batch_size": BATCH, "learning_rate": 5e-5, "seed": seed, "evaluations": 1}
        train_ranker(TrainSettings(**settings))
        yield row(system, Ranker.load(out), time.process_time() - start)


def write(path: Path, examples: Sequence[Example], *, right: int) -> None:
    """A file of lists, of which the first `right` right candidates are kept."""
    with open(path, "w", encoding="utf-8") as file:
        for one in examples:
            kept, out = set(one.right[:right]), set(one.right[right:])
            candidates = [text for text in one.choices if text not in out]
            record = {
                "context": one.text,
                "candidates": candidates,
                "labels": [int(text in kept) for text in candidates],
            }
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
