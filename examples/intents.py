"""Classify intents: scikit-learn's logistic regression on the vectors of a frozen encoder.

    python examples/intents.py banking77/train.csv banking77/test.csv

The files have a header, and in each row a text and its intent.
"""

from __future__ import annotations

import csv
import sys

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from polyencoder import Ranker


def read(path: str) -> tuple[list[str], list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        texts, intents = zip(*list(csv.reader(file))[1:], strict=True)
    return list(texts), list(intents)


def main(train: str, test: str, *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    ranker = Ranker.load(encoder)
    texts, intents = read(train)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1_000))
    classifier.fit(ranker.encode(texts), intents)

    texts, intents = read(test)
    vectors = ranker.encode(texts)
    print(f"accuracy {classifier.score(vectors, intents):.3f} on {len(texts):,} texts")
    for text, probabilities in zip(texts[:3], classifier.predict_proba(vectors[:3]), strict=True):
        print(f"{probabilities.max():.0%}  {classifier.classes_[probabilities.argmax()]}: {text}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
