"""Cosines of contexts and candidates; the vectors of candidates that come again are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from parlai.agents.tfidf.weights import TfidfWeights
from scipy.sparse import csr_array

from polyencoder.text.memory import TextMemory

MEMORY = 128 << 20  # bytes; a text of eleven words and its vector take some 600


Row = tuple[np.ndarray, np.ndarray]
"""A text's vector: the columns that are not 0, and the values in them."""


class TfidfVectors:
    """Texts as sparse vectors. Those of candidates are remembered, up to `memory` bytes.

    So is the matrix of the last list of candidates, however long: a list that comes again costs one sparse product.
    """

    def __init__(self, weights: TfidfWeights, *, memory: int = MEMORY) -> None:
        self._vectorizer = weights.vectorizer()
        self._n_terms = len(weights.terms)
        self._rows: TextMemory[Row] = TextMemory(_size, limit=memory)
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


def _size(row: Row) -> int:
    """Bytes of two arrays."""
    return row[0].nbytes + row[1].nbytes + 2 * 112
