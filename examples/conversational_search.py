"""Conversational search over an index that exists: train the side of contexts alone, and encode no candidate again.

    python examples/conversational_search.py runs/conversations

The encoder of the index knows single questions. Trained on conversations, it reads a follow-up with the turns before
it. The index needs no change: with millions of candidates that saves days.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from polyencoder import Ranker
from polyencoder.training import TrainSettings, train_ranker

DATA = Path(__file__).parent / "support"
CONVERSATION = [
    "I would like to send the boots back.",
    "Print the label from your account.",
    "And when is my money there?",
]


def main(
    out: str = "runs/conversations", *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2", max_updates: int = 20
) -> None:
    before = Ranker.load(encoder)
    candidates = [json.loads(line) for line in (DATA / "replies.jsonl").read_text(encoding="utf-8").splitlines()]
    index = before.index(candidates, f"{out}/index")

    report = train_ranker(
        TrainSettings(
            train=str(DATA / "train.jsonl"),
            valid=str(DATA / "valid.jsonl"),
            out=f"{out}/model",
            backbone=encoder,
            architecture="bi",  # or poly: the index serves both
            freeze_candidates=True,
            candidates_of=f"{out}/index",  # an error before training if its vectors are another model's
            batch_size=32,
            learning_rate=1e-4,
            max_updates=max_updates,
        )
    )
    for name, ranker in (("before", before), ("trained", Ranker.load(report.out))):
        print(name)
        for hit in ranker.search(CONVERSATION, index, top_k=2):
            print(f"  {hit.score:6.2f}  {hit.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
