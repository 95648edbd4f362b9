"""Candidates' vectors, remembered for as long as the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Encode = Callable[[Sequence[str]], Tensor]

CAPACITY = 1 << 18  # candidates; 400 MB at 384 dimensions


class VectorCache:
    """Vectors of the candidates of recent evaluation batches, so that a repeated candidate is encoded once."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._vectors: Tensor | None = None

    def clear(self) -> None:
        """Forget everything: the model has changed."""
        self._rows = {}
        self._vectors = None

    def get(self, texts: Sequence[str], encode: Encode) -> Tensor:
        """Vectors [len(texts), dim] of different texts; `encode` is asked for those that are not known."""
        if len(self._rows) + len(texts) > CAPACITY:
            self.clear()
        missing = [text for text in texts if text not in self._rows]
        if missing:
            new = encode(missing)
            used = len(self._rows)
            if self._vectors is None or used + len(missing) > len(self._vectors):
                grown = new.new_empty(max(1024, 2 * (used + len(missing))), new.size(1))
                if self._vectors is not None:
                    grown[:used] = self._vectors[:used]
                self._vectors = grown
            self._vectors[used : used + len(missing)] = new
            self._rows.update(zip(missing, range(used, used + len(missing)), strict=True))
        if self._vectors is None:
            return encode(texts)
        return self._vectors[torch.tensor([self._rows[text] for text in texts], device=self._vectors.device)]
