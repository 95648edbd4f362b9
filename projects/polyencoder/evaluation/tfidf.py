"""The keyword baseline: cosines of TF-IDF vectors, whose weights are learnt from responses and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyencoder.data.example import Example
from polyencoder.errors import CheckpointError, InputError
from polyencoder.evaluation.examples import check_examples, of_scores
from polyencoder.evaluation.metrics import HITS_AT, Tally
from polyencoder.storage.files import write_text
from polyencoder.text.memory import TextMemory

__all__ = ["TfidfVectors", "TfidfWeights", "evaluate_tfidf"]

FORMAT = "tfidf-1"
MEMORY = 128 << 20  # bytes; a text of eleven words and its vector take some 600

Row = tuple[np.ndarray, np.ndarray]
"""A text's vector: the columns that are not 0, and the values in them."""


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
        vectorizer = _vectorizer(ngram_range=(1, ngrams))
        if not any(map(vectorizer.build_analyzer(), texts)):
            raise InputError(f"task {task}: there is no word in its {len(texts)} training labels to fit tfidf on")
        vectorizer.fit(texts)
        terms = vectorizer.get_feature_names_out().tolist()
        return cls(terms, vectorizer.idf_.tolist(), ngrams, len(texts), task)

    def vectorizer(self) -> Any:
        """scikit-learn's vectorizer with these weights: texts to sparse vectors of length 1, or 0 without a term."""
        vectorizer = _vectorizer(ngram_range=(1, self.ngrams), vocabulary=self.terms)
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


class TfidfVectors:
    """Texts as sparse vectors. Those of candidates are remembered, up to `memory` bytes.

    So is the matrix of the last list of candidates, however long: a list that comes again costs one sparse product.
    """

    def __init__(self, weights: TfidfWeights, *, memory: int = MEMORY) -> None:
        self._vectorizer = weights.vectorizer()
        self._n_terms = len(weights.terms)
        self._rows: TextMemory[Row] = TextMemory(_size, limit=memory)
        self._last: tuple[list[str], Any] | None = None

    def cosines(self, contexts: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """Cosines [contexts, candidates], in float32; 0 where no term is shared."""
        # this way round, the large matrix need not be transposed
        product = self._candidates(candidates) @ self._vectorizer.transform(contexts).T.tocsr()
        return product.toarray().T.astype(np.float32)

    def _candidates(self, texts: Sequence[str]) -> Any:
        """Vectors [texts, terms], a sparse array of scipy."""
        if self._last is None or self._last[0] != texts:
            self._last = list(texts), self._assemble(texts)
        return self._last[1]

    def _assemble(self, texts: Sequence[str]) -> Any:
        from scipy.sparse import csr_array  # comes with scikit-learn

        found = {text: self._rows.get(text) for text in texts}
        known: dict[str, Row] = {text: row for text, row in found.items() if row is not None}
        if missing := [text for text, row in found.items() if row is None]:
            matrix = self._vectorizer.transform(missing)
            places = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
            new = {  # copies: a part would keep the whole matrix
                text: (matrix.indices[start:end].copy(), matrix.data[start:end].copy())
                for text, (start, end) in zip(missing, places, strict=True)
            }
            self._rows.update(new)
            known |= new
        rows = [known[text] for text in texts]
        ends = np.cumsum([0, *(len(columns) for columns, _ in rows)])
        columns = np.concatenate([columns for columns, _ in rows])
        values = np.concatenate([values for _, values in rows])
        return csr_array((values, columns, ends), shape=(len(texts), self._n_terms))


def evaluate_tfidf(
    responses: Iterable[str], examples: Sequence[Example], *, hits_at: Sequence[int] = HITS_AT
) -> dict[str, float]:
    """The metrics of the baseline, which reads the last turn of each context. It has no loss.

    Args:
        responses: those of the training data, of which it learns its weights.
        examples: to rank.
        hits_at: the k of recalls.

    Raises:
        InputError: there is no word in the responses, or an example cannot be evaluated, as in `evaluate`.
    """
    check_examples(examples)
    vectors = TfidfVectors(TfidfWeights.fit(responses, ngrams=1, task="train"))
    tally = Tally()
    for example in examples:
        scores = torch.from_numpy(vectors.cosines([example.turns[-1]], list(example.choices)))[0]
        tally.add([of_scores(scores, example, hits_at=hits_at)])
    return {name: value for name, value in tally.report().items() if name != "loss"}


def _size(row: Row) -> int:
    """Bytes of two arrays."""
    return row[0].nbytes + row[1].nbytes + 2 * 112


def _vectorizer(**options: Any) -> Any:
    """scikit-learn's, which takes a second to import: only those who ask for the baseline wait."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(**options)
