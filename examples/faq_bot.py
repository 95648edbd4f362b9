"""A FAQ bot that says when it has no answer: replies in an index, scores calibrated to probabilities.

    python examples/faq_bot.py "where is my parcel" "what is the capital of France"

Without arguments it reads questions from standard input. `make demo` does the same with a trained model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from polyencoder import Ranker

DATA = Path(__file__).parent / "support"


def read(name: str) -> list[dict]:
    with open(DATA / name, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main(questions: Iterable[str], *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    ranker = Ranker.load(encoder)
    index = ranker.index(read("replies.jsonl"))  # a temporary folder; give it a name to keep it

    # Fit probabilities on questions whose right reply is known, one in five of which shall have none.
    ranker.calibrate(DATA / "valid.jsonl", index, unanswerable=0.2)

    for question in questions:
        hits = ranker.search(question, index, top_k=1, min_probability=0.25)
        print(f"{hits[0].probability:.0%}  {hits[0].text}" if hits else "     I have no answer to that.")


if __name__ == "__main__":
    main(sys.argv[1:] or map(str.strip, sys.stdin))
