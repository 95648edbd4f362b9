"""`CandidateReader`: encodes candidates, with an LRU cache bounded in bytes."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from polyencoder.encoding.encode import read_candidates
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.changes import weights_sample, weights_state
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.text import TextEncoder

KEPT_BYTES = 1 << 27
_OF_OBJECTS = 1 << 10  # bytes of a candidate's Python objects and key: more than those of a short vector


class CandidateReader:
    """Encodes candidates with a model that has vectors, and caches the most recently used ones.

    The key is a candidate's tokens. A change of the model's weights or configuration, or of autocast, empties the
    cache. Thread-safe.

    Args:
        max_bytes: the maximum size of the cached vectors, with their objects.
    """

    def __init__(self, *, max_bytes: int = KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, TokenVectors] = OrderedDict()  # the latest at the end
        self._bytes = 0
        self._state: object = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles begin with an empty cache."""
        return partial(CandidateReader, max_bytes=self._max_bytes), ()

    def fits(self, model: RankerModel, ids: Sequence[Sequence[int]]) -> bool:
        """Whether the cache can hold all of these candidates."""
        numbers = model.dim * len(ids) + (model.token_dim or 0) * sum(map(len, ids))
        return 4 * numbers + _OF_OBJECTS * len(ids) <= self._max_bytes

    def __call__(
        self, model: RankerModel, text: TextEncoder, ids: Sequence[Sequence[int]], *, max_tokens: int | None = None
    ) -> list[TokenVectors]:
        """Encodes candidates with these token ids, `max_tokens` at once, or takes them from the cache."""
        keys = [array("i", row).tobytes() for row in ids]
        device = next(model.parameters()).device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        state = autocast, weights_state(model), weights_sample(model), model.config
        with self._lock:
            if self._state != state:
                self._kept.clear()
                self._bytes, self._state = 0, state
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        new = {key: row for key, row in zip(keys, ids, strict=True) if key not in found}
        places = list(new)
        batches = read_candidates(model, text, list(new.values()), max_tokens=max_tokens)
        read = {places[i]: one for batch, some in batches for i, one in zip(batch, some, strict=True)}
        self._keep(read, state)
        found |= read
        return [found[key] for key in keys]

    def _keep(self, read: dict[bytes, TokenVectors], state: object) -> None:
        with self._lock:
            if self._state != state or sum(map(_size, read.values())) > self._max_bytes:
                return
            for key, one in read.items():
                if key not in self._kept:
                    # a copy, as a view would keep its whole batch in memory
                    self._kept[key] = copy = TokenVectors(one.vector.clone(), one.tokens.clone())
                    self._bytes += _size(copy)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(self._kept.popitem(last=False)[1])


def _size(one: TokenVectors) -> int:
    return one.vector.nbytes + one.tokens.nbytes + _OF_OBJECTS
