"""Measures the presets of `polyencoder train`: time and accuracy of each, on ConvAI2 and DSTC7.

    python -m benchmarks.presets --datapath ../shared/data --pairs 2000 --json

Each preset trains on the same pairs, a seeded sample of the task's, and is evaluated on the same validation examples, a
seeded sample with their own candidates. Seconds are the processor's, of training with its evaluations; loading of data
and model is not counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.agents import CONVAI2, teacher_of
from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from polyencoder.data.example import Example
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.evaluation.names import main_measures
from polyencoder.settings.presets import PRESETS
from polyencoder.settings.train import TrainSettings
from polyencoder.training import train_ranker
from polyencoder.training.callbacks import Callback, Run

TASKS = {"ConvAI2": CONVAI2, "DSTC7": "selection:dstc7"}
READ = 20_000  # examples of a task, of which some are drawn


class Clock(Callback):
    """Takes the processor's seconds of a run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_start(self, run: Run) -> None:
        self.seconds = -time.process_time()

    def on_end(self, run: Run) -> None:
        self.seconds += time.process_time()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", required=True, help="ParlAI's data folder, with the tasks' files")
    parser.add_argument("--backbone", help="a pre-trained encoder (default: MiniLM)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=[*PRESETS])
    parser.add_argument("--pairs", type=int, default=2_000, help="to train on")
    parser.add_argument("--evaluated", type=int, default=300, help="validation examples")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    pairs, evaluated = (100, 20) if flags.quick else (flags.pairs, flags.evaluated)
    rows = []
    for name in flags.tasks:
        task = TASKS[name]
        data = {
            part: sample(task, datatype, datapath=flags.datapath, count=count)
            for part, datatype, count in (("train", "train:evalmode", pairs), ("valid", "valid", evaluated))
        }
        for preset in flags.presets:
            row = measure(preset, data, backbone=flags.backbone or str(minilm_folder()))
            rows.append({"task": name, **row})
    summary = {f"{row['task']}_{row['preset']}_r1": row["R@1"] for row in rows}
    report = {"benchmark": "presets", "machine": machine(), "settings": vars(flags), "rows": rows, "summary": summary}
    print_report(report, as_json=flags.json)


def measure(preset: str, data: dict[str, list[Example]], *, backbone: str) -> dict[str, Any]:
    """Trains with a preset; its accuracy before and after, in percent, and its seconds."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainSettings.of(
            preset=preset, backbone=backbone, train="pairs", valid="valid", out=str(Path(folder) / "out"), evaluations=1
        )
        report = train_ranker(settings, train=data["train"], valid=data["valid"], callbacks=[clock])
    known = {"before": report.before, "trained": report.trained}
    hits = {name: round(100 * measures["hits@1"], 1) for name, measures in known.items()}
    return {
        "preset": preset,
        "pairs": len(data["train"]),
        "evaluated": len(data["valid"]),
        "measure": next(iter(main_measures(report.trained))),
        "R@1": hits["trained"],
        "R@1 before": hits["before"],
        "MRR": round(report.trained["mrr"], 3),
        "seconds": round(clock.seconds, 1),
    }


def sample(task: str, datatype: str, *, datapath: str, count: int) -> list[Example]:
    """A seeded sample of a task's first `READ` examples."""
    examples = list(islice(_examples(task, datatype, datapath=datapath), READ))
    return SeededRandom("presets").sample(examples, count)


def _examples(task: str, datatype: str, *, datapath: str) -> Iterator[Example]:
    teacher = teacher_of(task, datatype=datatype, datapath=datapath)
    turns: list[str] = []
    while not teacher.epoch_done():
        message = teacher.act()
        turns += message["text"].split("\n")
        labels = message.get("labels") or message["eval_labels"]
        yield Example([*turns], labels[0], list(message.get("label_candidates") or ()) or None)
        turns = [] if message["episode_done"] else [*turns, labels[0]]


if __name__ == "__main__":
    main()
