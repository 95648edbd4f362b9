"""What every index is, wherever it keeps its vectors: another engine is one file with one class of these methods."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, get_args

from polyencoder.checks import checked_count, unencodable
from polyencoder.errors import ConfigError, InputError
from polyencoder.scoring import ContextEncoding

Found = Literal["exact", "certified", "approximate"]
"""How a result was found: by scoring everything, by a list that is proven to hold the best, or by one that may not."""

Filter = Mapping[str, Any]
"""Metadata fields and the value that each must have; a list of values stands for any of them."""


class Candidate(NamedTuple):
    """A candidate to put into an index."""

    id: str | None
    """Unique in the index; None for one made of the text and the metadata, so that equal records are one entry."""
    text: str
    metadata: dict[str, Any] | None = None
    """Anything that JSON can hold; fields of it can be filtered by."""
    where: str = ""
    """Its file and line, for messages."""


class Hit(NamedTuple):
    """A result of a search."""

    id: str
    text: str
    score: float
    metadata: dict[str, Any] | None
    found: Found
    rerank_score: float | None = None
    """A cross-encoder's score, which is on a scale of its own; None where there was no re-ranking."""
    probability: float | None = None
    """How likely it is the right one; None if the model that ordered the hits is not calibrated."""


def checked_top_k(top_k: int, *, available: int) -> int:
    """How many candidates a search gives: `top_k`, or all if there are fewer. InputError if it is no count."""
    return min(checked_count("top_k", top_k), available)


def checked_filter(filter: Filter | None) -> dict[str, list[Any]]:
    """The values that each field of the metadata may have.

    Raises:
        InputError: it is no such filter, or wants what no metadata can be: JSON has neither nan nor infinity.
    """
    if not isinstance(filter, (Mapping, type(None))):
        raise InputError(f"filter is {filter!r:.60}; it must be a dict, such as {{'lang': 'en', 'n': [1, 2]}}")
    wanted: dict[str, list[Any]] = {}
    for key, options in (filter or {}).items():
        wanted[key] = list(options) if isinstance(options, (list, tuple, set, frozenset)) else [options]
        for option in wanted[key]:
            if (
                not isinstance(key, str)
                or not isinstance(option, (str, int, float, type(None)))
                or (isinstance(option, float) and not math.isfinite(option))
                or any(unencodable(text) for text in (key, option) if isinstance(text, str))
            ):
                raise InputError(
                    f"cannot filter by {key!r:.60}: {option!r:.60}; a filter has, for each name, a text, a finite "
                    "number, true, false, null or a list of those"
                )
    return wanted


def check_contexts(contexts: ContextEncoding, *, dim: int) -> None:
    """Raise InputError unless the vectors of the contexts fit an index of this dimension, and are finite."""
    if contexts.dim != dim:
        raise InputError(f"context vectors {list(contexts.vectors.shape)} do not fit an index of dimension {dim}")
    finite = contexts.vectors.isfinite().all(dim=2)
    if contexts.mask is not None:
        finite |= ~contexts.mask
    if not finite.all():
        place = int(finite.all(dim=1).logical_not().nonzero()[0])
        raise InputError(f"the vectors of context {place} are not finite (inf or nan): this model cannot search")


def check_exactness(exactness: Found | None) -> None:
    """Raise ConfigError for what is neither None nor one of `Found`."""
    if exactness is not None and exactness not in get_args(Found):
        raise ConfigError(f"exactness is {exactness!r}; it must be one of {', '.join(get_args(Found))}")


class Index(ABC):
    """Candidates that can be searched with encoded contexts, and changed without encoding the others again."""

    @abstractmethod
    def search(
        self, contexts: ContextEncoding, *, top_k: int, filter: Filter | None = None, exactness: Found | None = None
    ) -> list[list[Hit]]:
        """The best `top_k` candidates of each context, best first; fewer where the filter lets fewer through.

        `exactness` is what every result must be at least; None for the fastest way that the index has.

        Raises:
            ConfigError: there is no such exactness.
            InputError: `top_k` is below 1, or the contexts do not fit.
        """

    @abstractmethod
    def tune(
        self, *, list_length: int | None = None, effort: int | None = None, tolerance: float | None = None
    ) -> None:
        """Say how searches that do not score everything look for the best, from now on; None for the index's choice.

        Args:
            list_length: how many candidates each code of a context, or group of codes, proposes.
            effort: how hard FAISS looks for these: `ef_search` of an hnsw index, `nprobe` of an ivf one.
            tolerance: how far codes of one group may be from each other, as a share of their length; see `groups`.

        Raises:
            ConfigError: this index has no use for one of them.
            InputError: one of them is too small.
        """

    @abstractmethod
    def changing(self) -> AbstractContextManager[None]:
        """What is added, removed and updated in the block becomes one change, when it ends: whole, or after an error
        nothing of it. Blocks may be nested; a search inside one does not see what it changes.

        >>> with index.changing():
        ...     index.remove(["r5"])
        ...     index.add(records)
        """

    @abstractmethod
    def add(self, records: Iterable[Candidate]) -> None:
        """Put in new candidates. One that is there already is left as it is; InputError if it differs."""

    @abstractmethod
    def remove(self, ids: Iterable[str]) -> None:
        """Take candidates out. InputError for an id that is not there."""

    @abstractmethod
    def update(self, records: Iterable[Candidate]) -> None:
        """Give candidates another text or other metadata. InputError for an id that is not there."""

    @abstractmethod
    def has_field(self, key: str) -> bool:
        """Whether the metadata of any candidate has this field."""

    @abstractmethod
    def count(self, filter: Filter | None = None) -> int:
        """The number of candidates that the filter lets through, each id counted."""

    def __len__(self) -> int:
        """The number of candidates, each id counted."""
        return self.count()
