"""Cosines of contexts and candidates; the vectors of candidates that come again are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from parlai.agents.tfidf.weights import TfidfWeights
from scipy.sparse import csr_array

MEMORY = 200_000  # texts; the vector of eleven words takes some 500 bytes


class TfidfVectors:
    """Texts as sparse vectors. Those of `memory` candidates are remembered; when more come, the old are forgotten.

    So is the matrix of the last list of candidates, however long: a list that comes again costs one sparse product.
    """

    def __init__(self, weights: TfidfWeights, *, memory: int = MEMORY) -> None:
        self._vectorizer = weights.vectorizer()
        self._n_terms = len(weights.terms)
        self._memory = memory
        self._rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # text -> columns, values
        self._last: tuple[list[str], csr_array] | None = None

    def cosines(self, contexts: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        """Cosines [contexts, candidates], in float32; 0 where no term is shared."""
        # this way round, the large matrix need not be transposed
        product = self._candidates(candidates) @ self._vectorizer.transform(contexts).T.tocsr()
        return product.toarray().T.astype(np.float32)

    def _candidates(self, texts: Sequence[str]) -> csr_array:
        """Vectors [texts, terms]."""
        if self._last is None or self._last[0] != texts:
            self._last = list(texts), self._assemble(texts)
        return self._last[1]

    def _assemble(self, texts: Sequence[str]) -> csr_array:
        new = [text for text in texts if text not in self._rows]
        if len(self._rows) + len(new) > self._memory:
            self._rows, new = {}, list(texts)
        if new:
            matrix = self._vectorizer.transform(new)
            for text, start, end in zip(new, matrix.indptr[:-1], matrix.indptr[1:], strict=True):
                self._rows[text] = matrix.indices[start:end], matrix.data[start:end]
        rows = [self._rows[text] for text in texts]
        ends = np.cumsum([0, *(len(columns) for columns, _ in rows)])
        columns = np.concatenate([columns for columns, _ in rows])
        values = np.concatenate([values for _, values in rows])
        return csr_array((values, columns, ends), shape=(len(texts), self._n_terms))
