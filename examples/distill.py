"""Distill a cross-encoder into a bi-encoder: the slow, accurate model teaches the fast one its scores.

    python examples/distill.py runs/distill

The teacher must be better than the student would be without it, so give it more data and time than this example has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from polyencoder.training import TrainSettings, train_ranker

DATA = Path(__file__).parent / "support"


def main(
    out: str = "runs/distill", *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2", max_updates: int = 40
) -> None:
    shared: dict[str, Any] = {
        "train": str(DATA / "train.jsonl"),
        "valid": str(DATA / "valid.jsonl"),
        "backbone": encoder,
        "candidates": "inline",  # an example's own, or sampled ones
        "num_negatives": 7,
        "text_truncate": 32,
        "label_truncate": 32,
        "batch_size": 8,
        "max_updates": max_updates,
    }
    teacher = train_ranker(TrainSettings(**shared, architecture="cross", out=f"{out}/teacher"))
    student = train_ranker(
        TrainSettings(
            **shared,
            architecture="bi",
            out=f"{out}/student",
            teacher=str(teacher.out),
            distillation_weight=0.5,  # of the teacher's scores; the labels have the rest
            distillation_loss="kl",
        )
    )
    for name, report in (("teacher", teacher), ("student", student)):
        print(f"{name}: R@1 {report.trained['hits@1']:.3f} among 20 candidates, in {report.out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
