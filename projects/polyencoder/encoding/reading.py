"""`CandidateReader`: encodes candidates, with an LRU cache bounded in bytes."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from polyencoder.search.late import TokenVectors

CACHE_BYTES = 1 << 27
_OBJECT_BYTES = 1 << 10  # of a candidate's Python objects and key: more than a short vector's


class CandidateEncoder(Protocol):
    """The part of an `Encoder` that reads candidates."""

    def read_candidates(self, ids: Sequence[Sequence[int]], *, max_tokens: int | None = None) -> list[TokenVectors]: ...

    def get_state(self) -> Hashable: ...


class CandidateReader:
    """Encodes candidates, and caches the last vectors, of one encoder's `get_state`, in `max_bytes`. Thread-safe."""

    def __init__(self, *, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._cache: OrderedDict[bytes, TokenVectors] = OrderedDict()  # the latest at the end
        self._bytes = 0
        self._state: object = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles begin with an empty cache."""
        return partial(CandidateReader, max_bytes=self._max_bytes), ()

    def fits(self, model: Any, ids: Sequence[Sequence[int]]) -> bool:
        """Whether the cache can hold all of these candidates."""
        numbers = model.dim * len(ids) + (model.token_dim or 0) * sum(map(len, ids))
        return bool(4 * numbers + _OBJECT_BYTES * len(ids) <= self._max_bytes)

    def __call__(
        self, encoder: CandidateEncoder, ids: Sequence[Sequence[int]], *, max_tokens: int | None = None
    ) -> list[TokenVectors]:
        """Encodes candidates with these token ids, `max_tokens` at once, or takes them from the cache."""
        keys = [array("i", row).tobytes() for row in ids]
        state = encoder.get_state()
        with self._lock:
            if self._state != state:
                self._cache.clear()
                self._bytes, self._state = 0, state
            cached = {key: self._cache[key] for key in keys if key in self._cache}
            for key in cached:
                self._cache.move_to_end(key)
        new = {key: row for key, row in zip(keys, ids, strict=True) if key not in cached}
        if new:
            encoded = dict(zip(new, encoder.read_candidates([*new.values()], max_tokens=max_tokens), strict=True))
            self._store(encoded, state)
            cached |= encoded
        return [cached[key] for key in keys]

    def _store(self, encoded: dict[bytes, TokenVectors], state: object) -> None:
        with self._lock:
            if self._state != state or sum(map(_compute_size, encoded.values())) > self._max_bytes:
                return
            for key, vectors in encoded.items():
                if key not in self._cache:
                    self._cache[key] = vectors
                    self._bytes += _compute_size(vectors)
            while self._bytes > self._max_bytes:
                self._bytes -= _compute_size(self._cache.popitem(last=False)[1])


def _compute_size(vectors: TokenVectors) -> int:
    return int(vectors.vector.nbytes + vectors.tokens.nbytes) + _OBJECT_BYTES
