"""A candidate as a row of a Milvus collection holds it, and what such a row cannot hold."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from polyencoder.errors import InputError
from polyencoder.index.base import Candidate
from polyencoder.index.entries import checked
from polyencoder.index.milvus.collection import MAX_BYTES

__all__ = ["MilvusEntry"]


class MilvusEntry(NamedTuple):
    """A candidate as a row of the collection holds it."""

    id: str
    text: str
    metadata: dict[str, Any]

    @classmethod
    def of(cls, candidate: Candidate) -> MilvusEntry:
        """Raises InputError for what an index, or Milvus, cannot hold."""
        where = f"{candidate.where}: " if candidate.where else ""
        try:
            text, id_, metadata = checked(candidate)
            if long := [key for key, value in (candidate.metadata or {}).items() if _is_long(value)]:
                raise ValueError(f"its {long[0]!r} has a whole number of more than 64 bits; Milvus holds none")
            for name, value in {"id": id_, "text": text, "metadata": metadata or ""}.items():
                if (n := len(value.encode())) > MAX_BYTES:
                    raise ValueError(f"its {name} has {n:,} bytes; Milvus holds at most {MAX_BYTES:,}")
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}not a candidate that Milvus can hold: {error}") from None
        fields = json.loads(metadata or "{}").items()
        return cls(id_, text, {name: value for name, value in fields if value is not None})


def _is_long(value: Any) -> bool:
    """Whether there is a whole number in it that has more than 64 bits."""
    if isinstance(value, (dict, list, tuple)):
        return any(map(_is_long, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
