"""A cache of values by text, bounded in bytes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

V = TypeVar("V")

ENTRY = 200  # overhead of a dictionary entry and its objects, in bytes


class TextMemory(Generic[V]):
    """A cache of values by text, of at most `limit` bytes by `size`; the oldest half is evicted. Thread-safe."""

    def __init__(self, size: Callable[[V], int], *, limit: int) -> None:
        self._size_of = size
        self.limit = limit
        self._values: dict[str, tuple[V, int]] = {}
        self.size = 0
        self._lock = threading.Lock()  # for changes; a look-up is one step of the interpreter's

    def __len__(self) -> int:
        return len(self._values)

    def get(self, text: str) -> V | None:
        """The cached value of a text, if any."""
        entry = self._values.get(text)
        return None if entry is None else entry[0]

    def update(self, values: Mapping[str, V]) -> None:
        """Caches the values of texts."""
        sizes = {text: ENTRY + sys.getsizeof(text) + self._size_of(value) for text, value in values.items()}
        with self._lock:
            for text, value in values.items():
                if sizes[text] <= self.limit // 10 and text not in self._values:
                    self._values[text] = value, sizes[text]
                    self.size += sizes[text]
            if self.size > self.limit:
                self._forget()

    def _forget(self) -> None:
        old = []
        remaining = self.size
        for text, (_, size) in self._values.items():
            if remaining <= self.limit // 2:
                break
            old.append(text)
            remaining -= size
        for text in old:
            del self._values[text]
        self.size = remaining

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TextMemory, limit=self.limit), (self._size_of,)
