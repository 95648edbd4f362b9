"""How much each word counts, learnt from a task's responses, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from polyencoder.errors import CheckpointError, InputError
from polyencoder.files import write_text

FORMAT = "tfidf-1"


@dataclass(frozen=True)
class TfidfWeights:
    """Inverse document frequencies: a word of every response counts 1, a rarer one more.

    Words are scikit-learn's: lower-cased, of two characters or more.

    terms: the words and, with `ngrams` above 1, the sequences of up to so many of them. idf: one weight for each term.
    responses: how many they were learnt from. task: the task that these belong to.
    """

    terms: list[str]
    idf: list[float]
    ngrams: int
    responses: int
    task: str

    @classmethod
    def fit(cls, responses: Iterable[str], *, ngrams: int, task: str) -> TfidfWeights:
        """Learn the weights.

        Raises:
            InputError: there is no word in the responses.
        """
        texts = list(responses)
        vectorizer = TfidfVectorizer(ngram_range=(1, ngrams))
        if not any(map(vectorizer.build_analyzer(), texts)):
            raise InputError(f"task {task}: there is no word in its {len(texts)} training labels to fit tfidf on")
        vectorizer.fit(texts)
        terms = vectorizer.get_feature_names_out().tolist()
        return cls(terms, vectorizer.idf_.tolist(), ngrams, len(texts), task)

    def vectorizer(self) -> TfidfVectorizer:
        """scikit-learn's vectorizer with these weights: texts to sparse vectors of length 1, or 0 without a term."""
        vectorizer = TfidfVectorizer(ngram_range=(1, self.ngrams), vocabulary=self.terms)
        vectorizer.idf_ = np.array(self.idf)
        return vectorizer

    def save(self, path: str) -> None:
        """Write them to `path` as JSON."""
        write_text(path, json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False))

    @classmethod
    def read(cls, path: str) -> TfidfWeights:
        """The weights that `save` wrote.

        Raises:
            CheckpointError: the file is damaged, or something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] == FORMAT and len(content["terms"]) == len(content["idf"]):
                return cls(**{field.name: content[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError):
            pass
        raise CheckpointError(f"{path}: is no model file of -m tfidf ({FORMAT}); give another -mf, or delete it")
