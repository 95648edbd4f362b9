"""What every index is, wherever it keeps its vectors: another engine is one file with one class of these methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from polyencoder.errors import InputError
from polyencoder.index.options import Filter, Found, SearchOptions, changed
from polyencoder.scoring import ContextEncoding


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


class Index(ABC):
    """Candidates that can be searched with encoded contexts, and changed without encoding the others again."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End its connection, if it has one; it cannot be used after that."""

    @property
    def remote(self) -> bool:
        """Whether a server keeps it, so that who asks it waits, perhaps for long."""
        return False

    def search(
        self, contexts: ContextEncoding, options: SearchOptions | None = None, **changes: Any
    ) -> list[list[Hit]]:
        """The best candidates of each context, best first; fewer where the filter lets fewer through.

        All scores are exact; what can be missing is a candidate. Of each hit, `found` says how it was found.

        >>> index.search(contexts, top_k=5, exactness="certified")

        Args:
            contexts: the encoded contexts, any number of them.
            options: how to search; None for `SearchOptions()`.
            changes: fields of `SearchOptions`, in place of those of `options`.

        Raises:
            ConfigError: there is no such option, or this index has no use for one.
            InputError: an option is too small, or the contexts do not fit.
        """
        options = changed(options, changes)
        self.check(options)
        return self._search(contexts, options)

    @abstractmethod
    def _search(self, contexts: ContextEncoding, options: SearchOptions) -> list[list[Hit]]:
        """`search` with options that were checked."""

    @abstractmethod
    def check(self, options: SearchOptions) -> None:
        """Raise ConfigError for an option that this index has no use for."""

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
    def put(self, records: Iterable[Candidate]) -> None:
        """Put in candidates, in the place of those that have their ids. What is there already stays as it is."""

    @abstractmethod
    def has_field(self, key: str) -> bool:
        """Whether the metadata of any candidate has this field."""

    @abstractmethod
    def count(self, filter: Filter | None = None) -> int:
        """The number of candidates that the filter lets through, each id counted."""

    def check_searchable(self) -> None:
        """Raise PolyencoderError where it cannot be searched now."""
        self.count()

    def __len__(self) -> int:
        """The number of candidates, each id counted."""
        return self.count()
