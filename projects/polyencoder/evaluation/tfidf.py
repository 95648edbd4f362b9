"""TF-IDF baseline: cosines of TF-IDF vectors, fitted to responses."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from polyencoder.data.example import Example
from polyencoder.errors import InputError
from polyencoder.evaluation.examples import check_examples, tally_scores
from polyencoder.evaluation.metrics import HITS_AT
from polyencoder.text.memory import TextMemory

MEMORY = 128 << 20  # bytes; a text of eleven words and its vector take some 600

Row = tuple[np.ndarray, np.ndarray]
"""A text's vector: the columns that are not 0, and the values in them."""


class Tfidf:
    """Inverse document frequencies (a word of every response counts 1, a rarer one more), and cosines by them.

    Words are scikit-learn's: lower-cased, of two characters or more. Vectors of candidates are cached, up to
    `memory` bytes, and so is the matrix of the last list of candidates: repeating a list costs one sparse product.

    Raises:
        InputError: there is no word in the responses that the weights are fitted to.
    """

    def __init__(self, responses: Iterable[str], *, memory: int = MEMORY) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

        texts = list(responses)
        self._vectorizer = TfidfVectorizer()
        self._analyze = self._vectorizer.build_analyzer()
        if not any(map(self._analyze, texts)):
            raise InputError(f"no words in {len(texts)} training responses to fit TF-IDF to")
        self._vectorizer.fit(texts)
        self._rows: TextMemory[Row] = TextMemory(_compute_size, limit=memory)
        self._last: tuple[list[str], Any] | None = None

    def split_words(self, text: str) -> tuple[str, ...]:
        """The words of a text; texts with equal ones have equal cosines."""
        return tuple(self._analyze(text))

    def compute_cosines(self, contexts: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """Cosines [contexts, candidates], in float32; 0 where no term is shared."""
        if self._last is None or self._last[0] != candidates:
            self._last = list(candidates), self._vectorize(candidates)
        # this way round, the large matrix need not be transposed
        product = self._last[1] @ self._vectorizer.transform(contexts).T.tocsr()
        return product.toarray().T.astype(np.float32)

    def _vectorize(self, texts: Sequence[str]) -> Any:
        """Vectors [texts, terms], a sparse array of scipy."""
        from scipy.sparse import csr_array  # comes with scikit-learn

        cached = {text: self._rows.get(text) for text in texts}
        rows_of: dict[str, Row] = {text: row for text, row in cached.items() if row is not None}
        if missing := [text for text, row in cached.items() if row is None]:
            matrix = self._vectorizer.transform(missing)
            places = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
            new = {  # copies: a part would keep the whole matrix
                text: (matrix.indices[start:end].copy(), matrix.data[start:end].copy())
                for text, (start, end) in zip(missing, places, strict=True)
            }
            self._rows.update(new)
            rows_of |= new
        rows = [rows_of[text] for text in texts]
        ends = np.cumsum([0, *(len(columns) for columns, _ in rows)])
        columns = np.concatenate([columns for columns, _ in rows])
        values = np.concatenate([values for _, values in rows])
        return csr_array((values, columns, ends), shape=(len(texts), len(self._vectorizer.idf_)))


def evaluate_tfidf(
    responses: Iterable[str], examples: Sequence[Example], *, hits_at: Sequence[int] = HITS_AT
) -> dict[str, float]:
    """Evaluates the baseline, fitted to training responses, on last turns; no loss. Errors as in `evaluate`."""
    check_examples(examples)
    tfidf = Tfidf(responses)
    cosines = (tfidf.compute_cosines([example.turns[-1]], list(example.choices))[0] for example in examples)
    tally = tally_scores(examples, enumerate(map(torch.from_numpy, cosines)), keys=tfidf.split_words, hits_at=hits_at)
    return {name: value for name, value in tally.report().items() if name != "loss"}


def _compute_size(row: Row) -> int:
    return sum(map(sys.getsizeof, row))
