"""A cache of candidates' vectors, valid for as long as the model stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyencoder.text.memory import ENTRY

Encode = Callable[[Sequence[str]], Tensor]

CAPACITY = 512 << 20  # bytes of vectors and texts: some 300,000 candidates at 384 dimensions


class VectorCache:
    """Vectors of the candidates of recent evaluation batches, so that a repeated candidate is encoded once."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._vectors: Tensor | None = None
        self._texts = 0  # bytes

    def clear(self) -> None:
        """Forget everything: the model has changed."""
        self._rows = {}
        self._vectors = None
        self._texts = 0

    def get(self, texts: Sequence[str], encode: Encode) -> Tensor:
        """Vectors [len(texts), dim] of different texts; `encode` is asked for those that are not known."""
        missing = [text for text in texts if text not in self._rows]
        if missing and self._size(missing) > CAPACITY:
            self.clear()
            missing = list(texts)
        if missing:
            new = encode(missing)
            used = len(self._rows)
            needed = used + len(missing)
            if self._vectors is None or needed > len(self._vectors):
                most = CAPACITY // (new.size(1) * new.element_size())
                grown = new.new_empty(max(needed, min(most, max(1024, 2 * needed))), new.size(1))
                if self._vectors is not None:
                    grown[:used] = self._vectors[:used]
                self._vectors = grown
            self._vectors[used : used + len(missing)] = new
            self._texts += sum(map(sys.getsizeof, missing))
            self._rows.update(zip(missing, range(used, used + len(missing)), strict=True))
        if self._vectors is None:
            return encode(texts)
        return self._vectors[torch.tensor([self._rows[text] for text in texts], device=self._vectors.device)]

    def _size(self, more: Sequence[str]) -> int:
        """Bytes, with so many texts more."""
        row = 0 if self._vectors is None else self._vectors.size(1) * self._vectors.element_size()
        rows = len(self._rows) + len(more)
        return rows * (row + ENTRY) + self._texts + sum(map(sys.getsizeof, more))
