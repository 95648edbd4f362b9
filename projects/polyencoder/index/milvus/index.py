"""`MilvusIndex`: an index in Milvus, on one machine (Milvus Lite, in a file) or on many.

Each candidate is a row of a collection: id, text, metadata and vector. Milvus finds neighbours of single vectors by
inner product, but a poly-encoder's score is another function (see `certificate`). So Milvus proposes candidates, which
are scored here (see `search`). Milvus's search with several vectors (MaxSim) would rank differently.

Exactness: *exact* if all candidates that pass the filter were fetched and scored, which happens if they are no more
than the codes could name; *certified* if the collection is "flat" and nothing outside the lists can be better;
*approximate* otherwise.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Any, TypeVar, get_args

import numpy as np
import torch

from polyencoder.checks import check_choice
from polyencoder.data.loader import in_batches
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.base import check_contexts
from polyencoder.index.filters import Filter, Kind
from polyencoder.index.hits import Hit
from polyencoder.index.meta import Fingerprints, Maker
from polyencoder.index.milvus.collection import Description, IndexKind, MilvusCollection
from polyencoder.index.milvus.rows import condition, has_field, kept_metadata
from polyencoder.index.milvus.search import MilvusSearch
from polyencoder.index.options import SearchOptions
from polyencoder.index.rows import ROWS_AT_ONCE, Array, Entry, Row, RowIndex, key_of
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.exact import at_least_fp32

T = TypeVar("T")


class MilvusIndex(RowIndex):
    """Candidates in a Milvus collection. With a server, any number of processes may search and change it."""

    engine = "Milvus"
    _kept_metadata = staticmethod(kept_metadata)

    def __init__(
        self,
        collection: MilvusCollection,
        maker: Maker,
        ranker: TextRanker | Fingerprints | None,
        *,
        attention: str | None = None,
    ) -> None:
        super().__init__(maker, ranker, attention=attention)
        self.collection = collection
        self.has_exact_lists = collection.load()
        """Whether results can be certified."""
        self._description: Description | None = None
        self._changes: ChainMap[str, Row | None] | None = None
        """In a block of `changing`: the new rows, by key; None if removed."""
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls,
        where: str,
        ranker: TextRanker | Fingerprints,
        *,
        kind: IndexKind | None = None,
        model_name: str = "",
        dim: int | None = None,
    ) -> MilvusIndex:
        """Creates an empty index, or opens an existing one of this model, to resume a killed build.

        Args:
            where: `milvus:./candidates.db` for Milvus Lite, `milvus:http://host:19530` or `https` for a server, either
                with `#name` for another collection than `polyencoder`. For a login, put `user:password@` before
                the host or, better, a token into the environment, MILVUS_TOKEN.
            kind: as `milvus` in `IndexOptions`; None for "auto", or the kind of the existing index.
            model_name: where the model was loaded from, for messages about the index.
            dim: the vectors' dimension, if candidates have vectors and `ranker` is their encoder's fingerprints.

        Raises:
            PolyencoderError: the server cannot be reached, or the file is not of Milvus Lite.
            CheckpointError: the collection exists and was made by another model or program.
            ConfigError: the collection exists and is of another kind.
        """
        if kind is not None:
            check_choice("milvus", kind, get_args(IndexKind))
        maker = Maker.of(ranker, model_name=model_name, dim=dim)
        with ExitStack() as failed:
            collection = failed.enter_context(closing(MilvusCollection(where)))
            if (there := collection.description()) is None:
                collection.create(dim=maker.dim, kind=kind or "auto", description=maker.to_json())
            else:
                maker = Maker.parsed(there.text, collection.where)
                maker.check_model(ranker, where=collection.where)
            index = cls(collection, maker, ranker)
            if kind is not None and index.has_exact_lists != (kind == "flat"):
                other = "flat" if index.has_exact_lists else "auto"
                raise ConfigError(
                    f"{collection.where}: exists and is of the kind {other}, not {kind}; give another collection "
                    "(#name)"
                )
            failed.pop_all()
        return index

    @classmethod
    def open(
        cls, where: str, ranker: TextRanker | Fingerprints | None = None, *, attention: str | None = None
    ) -> MilvusIndex:
        """Opens an index for the model that made it, as `polyencoder.index.open.open_index`; `where` as in `create`."""
        with ExitStack() as failed:
            collection, maker = _opened(where, failed)
            maker.check_model(ranker, where=collection.where)
            index = cls(collection, maker, ranker, attention=attention)
            failed.pop_all()
        return index

    def close(self) -> None:
        """Closes the connection. A file of Milvus Lite stays in use until this process ends."""
        self.collection.close()

    @property
    def address(self) -> str:
        return self.collection.where

    @property
    def remote(self) -> bool:
        return not self.collection.embedded

    def count(self, filter: Filter | None = None) -> int:
        return self.collection.count(condition(filter))

    def count_texts(self, filter: Filter | None = None) -> int:
        """The number of candidates (ids): Milvus cannot count different texts."""
        return self.count(filter)

    def has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        """As in `Index.has_field`, with values of any kind: Milvus cannot ask for one."""
        return self.collection.any(has_field(key))

    def texts_of(self, ids: Iterable[str]) -> dict[str, str]:
        found = (self._entries(map(key_of, some)) for some in in_batches(ids, ROWS_AT_ONCE))
        return {entry.id: entry.text for entries in found for entry in entries.values()}

    def vectors_of(self, ids: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        rows = self.collection.rows(map(key_of, ids), ["id", "vector"])
        return {row["id"]: _vector(row) for row in rows.values()}

    def _check_newest(self) -> None:
        """Raises CheckpointError if the collection is gone, or was replaced by one of another model."""
        if (newest := self.collection.description()) == self._description:
            return
        if newest is None:
            raise CheckpointError(self.collection.how_to_make)
        maker = Maker.parsed(newest.text, self.address)
        self._model.check(maker, where=self.address)
        self.meta, self.has_exact_lists = maker, self.collection.load()
        self._description = newest

    def check_searchable(self) -> None:
        self.collection.any("")  # Milvus Lite counts unloaded data, too

    # Searching

    @torch.no_grad()
    def _search(
        self, contexts: ContextEncoding, options: SearchOptions, *, floors: Sequence[float] | None = None
    ) -> list[list[Hit]]:
        """Milvus applies the filter; "certified" fetches everything if necessary, "exact" always.

        Equal scores have a fixed order. `list_length` is max(2 k, 32) unless given.
        """
        self._check_newest()
        check_contexts(contexts, dim=self.meta.dim)
        total = len(self)
        available = self.count(options.filter) if options.filter else total
        top_k = options.k(total)
        search = MilvusSearch(
            self.collection,
            contexts.to(dtype=at_least_fp32(contexts.vectors.dtype)),
            k=min(top_k, available),
            available=available,
            condition=condition(options.filter),
            attention=self._model.attention(self.meta, contexts),
            exact_lists=self.has_exact_lists,
        )
        length = options.list_length or max(2 * top_k, 32)
        answers = search.best(exactness=options.exactness or "approximate", list_length=length, floors=floors)
        keys = search.keys
        named = [[keys[row] for row in answer.rows.tolist()] for answer in answers]
        entries = self._entries({key for own in named for key in own})
        return [
            [
                Hit(entry.id, entry.text, score, entry.metadata or None, answer.found)
                for key, score in zip(own, answer.scores.tolist(), strict=True)
                if (entry := entries.get(key)) is not None  # perhaps just removed by another process
            ]
            for own, answer in zip(named, answers, strict=True)
        ]

    def check(self, options: SearchOptions) -> None:
        """As in `Index.check`: `list_length` is the only shortlist option here."""
        super().check(options)
        if options.effort is not None or options.tolerance is not None:
            raise ConfigError(f"{self.collection.where}: effort and tolerance are for FAISS; Milvus has list_length")
        if options.dtype != "float32":
            raise ConfigError(f"{self.collection.where}: dtype is for scans of index folders, not for Milvus")

    def _entries(self, keys: Iterable[str], *, strong: bool = False) -> dict[str, Entry]:
        """The existing entries of these keys."""
        rows = self.collection.rows(keys, Entry._fields, strong=strong)
        return {key: Entry(*(row[name] for name in Entry._fields)) for key, row in rows.items()}

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """As in `Index.changing`, as far as possible in Milvus, which has no transactions.

        Changes are collected in memory and compared with the existing candidates; the server gets them when the block
        succeeds. If the connection is lost then, a part may be applied. Changes of other threads wait.
        """
        with self._lock:
            outer = self._changes
            if outer is None:
                self._check_newest()
            self._changes = inner = ChainMap() if outer is None else outer.new_child()
            try:
                yield
                if outer is None:
                    self._apply(inner)
                else:
                    outer.update(inner.maps[0])
            finally:
                self._changes = outer

    def _in_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        """Each step is one change; in a block of `changing` all steps are.

        So the steps before an invalid record, or an unknown id, remain.
        """
        with self._lock, nullcontext() if self._changes is None else self.changing():
            changed = 0
            for some in in_batches(items, ROWS_AT_ONCE):
                with self.changing():
                    changed += step(some)
            return changed

    def _there(self, ids: Iterable[str]) -> dict[str, Row]:
        keys, pending = {key_of(id_) for id_ in ids}, self._pending
        found = self._entries({key for key in keys if key not in pending}, strong=True)
        rows = [Row(entry, is_stored=True) for entry in found.values()]
        return {row.entry.id: row for row in [*rows, *(pending.get(key) for key in keys)] if row is not None}

    def _stored(self, keys: Iterable[str]) -> dict[str, tuple[str, Array]]:
        rows = self.collection.rows([*keys], ["text", "vector"], strong=True)
        return {key: (row["text"], _vector(row)) for key, row in rows.items()}

    def _write(self, rows: Mapping[str, Row]) -> None:
        self._pending.update(rows)

    def _delete(self, keys: list[str]) -> None:
        self._pending.update(dict.fromkeys(keys))

    @property
    def _pending(self) -> ChainMap[str, Row | None]:
        """What the block of `changing` has collected."""
        assert self._changes is not None
        return self._changes

    def _apply(self, changes: Mapping[str, Row | None]) -> None:
        """Writes and deletes rows. Each new text is encoded once."""
        for some in in_batches(((key, row) for key, row in changes.items() if row), ROWS_AT_ONCE):
            vectors = self._vectors_of(dict(some))
            self.collection.write(
                {"key": key, **row.entry._asdict(), "vector": vectors[key], "norm": float(np.linalg.norm(vectors[key]))}
                for key, row in some
            )
        if gone := [key for key, row in changes.items() if row is None]:
            self.collection.delete(gone)
        if changes:
            self.collection.flush()


def _vector(row: Mapping[str, Any]) -> Array:
    return np.asarray(row["vector"], dtype=np.float32)


def _opened(where: str, stack: ExitStack) -> tuple[MilvusCollection, Maker]:
    """Opens an index, which `stack` closes, and reads its model. Errors as in `MilvusIndex.open`."""
    collection = stack.enter_context(closing(MilvusCollection(where, create=False)))
    if (description := collection.description()) is None:
        raise CheckpointError(collection.how_to_make)
    return collection, Maker.parsed(description.text, collection.where)


def described_milvus(where: str) -> list[str]:
    """A summary of an index, in lines, without its model. Errors as in `MilvusIndex.open`."""
    with ExitStack() as stack:
        collection, maker = _opened(where, stack)
        kind = "flat: results can be certified" if collection.load() else "auto: by the index that it chooses"
        vectors = f"of {maker.dim} numbers, float32"
        return [
            *maker.summary(collection.where, entries=collection.count(), vectors=vectors),
            f"search: Milvus, {kind}",
        ]
