"""`Index`: the interface of every index, whichever engine keeps its vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from polyencoder.checks import checked_iterable, checked_text
from polyencoder.errors import InputError
from polyencoder.index.options import Exactness, Filter, SearchOptions, changed
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
    vector: np.ndarray[Any, Any] | None = None
    """Its vector, [dim], where an encoder made that already; None: the index's model encodes the text."""


How = Literal["add", "update", "put"]
"""As a new one, in the place of one, or whichever it is."""

Record = str | Mapping[str, Any] | Candidate
"""A candidate as callers may give it: its text alone, a dict with `text`, `id`, `metadata` and, where it exists, its
`vector`, or a `Candidate`."""


def checked_records(records: Iterable[Record]) -> Iterator[Candidate]:
    """Each record as a `Candidate`, one at a time. Raises InputError for what is no list of records, or no record."""
    if isinstance(records, Candidate):
        raise InputError("candidates is one record; give a list of records")
    given = checked_iterable("candidates", records, of="texts or of records with `text`, `id` and `metadata`")
    return (_candidate(record, where=f"candidate {place}") for place, record in enumerate(given))


def _candidate(record: Any, *, where: str) -> Candidate:
    if isinstance(record, Candidate):
        return record
    if isinstance(record, str):
        return Candidate(None, record)
    if not isinstance(record, Mapping):
        raise InputError(f"{where} is {record!r:.60}; it must be a text, or a dict with `text`, `id` and `metadata`")
    if "text" not in record:
        raise InputError(f"{where} is {record!r:.60}; it has no `text`")
    if others := [key for key in record if key not in ("text", "id", "metadata", "vector")]:
        raise InputError(f"{where} has {others[0]!r:.60} beside `text`, `id` and `metadata`: put it into its metadata")
    id_: Any = record.get("id")
    if isinstance(id_, int) and not isinstance(id_, bool):
        id_ = str(id_)
    return Candidate(id_, record["text"], record.get("metadata"), where, record.get("vector"))


class Hit(NamedTuple):
    """A result of a search."""

    id: str
    text: str
    score: float
    metadata: dict[str, Any] | None
    found: Exactness
    rerank_score: float | None = None
    """A cross-encoder's score, which is on a scale of its own; None where there was no re-ranking."""
    probability: float | None = None
    """How likely it is the right one; None if the model that ordered the hits is not calibrated."""


def encoding_of(contexts: ContextEncoding | torch.Tensor | np.ndarray[Any, Any]) -> ContextEncoding:
    """Contexts as a search takes them. InputError for vectors of another shape than [contexts, (codes,) dim]."""
    if isinstance(contexts, ContextEncoding):
        return contexts
    try:
        vectors = torch.as_tensor(contexts)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"contexts is {contexts!r:.60}; it must be vectors, [contexts, dim]") from None
    if vectors.dtype not in (torch.float32, torch.float64):
        vectors = vectors.float()
    return ContextEncoding(vectors.unsqueeze(1) if vectors.dim() == 2 else vectors)


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


def _with_id(record: Candidate) -> Candidate:
    if record.id is None:
        raise InputError(f"{record.where or 'a record'}: has no id; an update says by its id what is updated")
    checked_text(f"{record.where or 'a record'}: its id", record.id)
    return record


class Index(ABC):
    """Candidates that can be searched with encoded contexts, and changed without encoding the others again."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End its connection, if it has one; it cannot be used after that."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is, as its error messages begin: without a password."""

    @property
    def remote(self) -> bool:
        """Whether a server keeps it, so that who asks it waits, perhaps for long."""
        return False

    def search(
        self,
        contexts: ContextEncoding | torch.Tensor | np.ndarray[Any, Any],
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> list[list[Hit]]:
        """The best candidates of each context, best first; fewer where the filter lets fewer through.

        All scores are exact; what can be missing is a candidate. Of each hit, `found` says how it was found.

        Examples:
            >>> index.search(contexts, top_k=5, exactness="certified")
            >>> index.search(numpy.load("queries.npy"), top_k=5)

        Args:
            contexts: the encoded contexts, any number of them; or their vectors, [contexts, dim] of one vector each or
                [contexts, codes, dim]. The score of one vector is its inner product with the candidate's.
            options: how to search; None for `SearchOptions()`.
            changes: fields of `SearchOptions`, in place of those of `options`.

        Raises:
            ConfigError: there is no such option, or this index has no use for one.
            InputError: an option is too small, or the contexts do not fit.
        """
        options = changed(options, changes)
        self.check(options)
        return self._search(encoding_of(contexts), options)

    @abstractmethod
    def _search(self, contexts: ContextEncoding, options: SearchOptions) -> list[list[Hit]]:
        """`search` with options that were checked."""

    @abstractmethod
    def check(self, options: SearchOptions) -> None:
        """Raise ConfigError for an option that this index has no use for."""

    @abstractmethod
    def changing(self) -> AbstractContextManager[None]:
        """Makes one change of all that is added, removed and updated in the block, when it ends; after an error none.

        Blocks may be nested; a search inside one does not see what it changes.

        Examples:
            >>> with index.changing():
            ...     index.remove(["r5"])
            ...     index.add(records)
        """

    takes_vectors: ClassVar[bool] = False
    """Whether candidates that are added may bring their vectors."""

    def add(self, records: Iterable[Record]) -> None:
        """Put in new candidates. One that exists already is unchanged; InputError if it differs."""
        self._enter(self._usable(records), "add")

    def remove(self, ids: Iterable[str], *, missing_ok: bool = False) -> None:
        """Take candidates out. InputError for an id that is not there, unless `missing_ok`."""
        given = checked_iterable("ids", ids, of="ids")
        self._remove((checked_text(f"id {place}", id_) for place, id_ in enumerate(given)), missing_ok=missing_ok)

    def update(self, records: Iterable[Record]) -> None:
        """Give candidates another text or other metadata. InputError for an id that is not there, or no id."""
        self._enter(map(_with_id, self._usable(records)), "update")

    def put(self, records: Iterable[Record]) -> None:
        """Put in candidates, in the place of those that have their ids. Equal ones are unchanged."""
        self._enter(self._usable(records), "put")

    def _usable(self, records: Iterable[Record]) -> Iterator[Candidate]:
        for record in checked_records(records):
            if record.vector is not None and not self.takes_vectors:
                raise InputError(
                    f"{record.where or repr(record.id)}: has a vector, but here the model encodes what is added; build "
                    "an index of all vectors, or add the text alone"
                )
            yield record

    @abstractmethod
    def _enter(self, records: Iterable[Candidate], how: How) -> None: ...

    @abstractmethod
    def _remove(self, ids: Iterable[str], *, missing_ok: bool) -> None: ...

    @abstractmethod
    def has_field(self, key: str) -> bool:
        """Whether the metadata of any candidate has this field."""

    @abstractmethod
    def count(self, filter: Filter | None = None) -> int:
        """The number of candidates that the filter lets through, each id counted."""

    @abstractmethod
    def count_texts(self, filter: Filter | None = None) -> int:
        """The number of different texts of the candidates that the filter lets through."""

    def check_searchable(self) -> None:
        """Raise PolyencoderError where it cannot be searched now."""
        self.count()

    def __len__(self) -> int:
        """The number of candidates, each id counted."""
        return self.count()
