"""Train on your own pairs in Python, and compare the model with the encoder that it was made from.

    python examples/train_own_pairs.py my/train.jsonl my/valid.jsonl runs/my

Without arguments it trains on 160 questions to a shop. The same by a command: `polyencoder train`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from polyencoder import Ranker
from polyencoder.training import TrainSettings, train_ranker

DATA = Path(__file__).parent / "support"


def main(
    train: str = str(DATA / "train.jsonl"),
    valid: str = str(DATA / "valid.jsonl"),
    out: str = "runs/own_pairs",
    *,
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2",
    max_updates: int | None = None,
) -> None:
    report = train_ranker(
        TrainSettings(
            train=train,
            valid=valid,
            out=out,
            backbone=encoder,
            architecture="bi",
            batch_size=32,
            learning_rate=1e-4,
            text_truncate=128,  # tokens of a context; enough for a few turns
            epochs=3,
            max_updates=max_updates,
        )
    )
    for name, measured in (("TF-IDF", report.tfidf), ("before", report.before), ("trained", report.trained)):
        print(f"{name:8} R@1 {measured['hits@1']:.3f}")
    if report.warning:
        print(report.warning)

    ranker = Ranker.load(report.out)
    print(ranker)


if __name__ == "__main__":
    main(*sys.argv[1:])
