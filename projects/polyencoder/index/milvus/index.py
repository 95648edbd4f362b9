"""`MilvusIndex`: an index in Milvus, on one machine (Milvus Lite, in a file) or on many.

Each candidate is a row of a collection. Milvus proposes neighbours of single vectors by inner product, and they are
scored here (`row_search`). Milvus's search with several vectors (MaxSim) would rank differently.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Any, TypeVar, get_args

from polyencoder.checks import check_choice
from polyencoder.data.loader import iter_batches
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.documents import Split
from polyencoder.index.filters import Filter, parse_filter, passes
from polyencoder.index.meta import Fingerprints, Maker
from polyencoder.index.milvus.collection import MAX_BYTES, MAX_TERMS, Description, IndexKind, MilvusCollection
from polyencoder.index.row_search import Field, Rows
from polyencoder.index.rows import ROWS_AT_ONCE, Entry, Row, RowIndex, hash_id
from polyencoder.index.terms import list_bounds, list_field_terms, list_terms
from polyencoder.index.values import Kind

T = TypeVar("T")


class MilvusIndex(RowIndex):
    """Candidates in a Milvus collection. With a server, any number of processes may search and change it."""

    engine = "Milvus"

    def __init__(self, database: MilvusCollection, meta: Maker, ranker: TextRanker | Fingerprints | None) -> None:
        super().__init__(database, meta, ranker)
        self.collection = database
        database.load()
        self._description: Description | None = None
        self._changes: ChainMap[str, Row | None] | None = None
        """In a block of `changing`: the new rows, by key; None if removed."""

    @classmethod
    def create(
        cls,
        where: str,
        ranker: TextRanker | Fingerprints,
        *,
        kind: IndexKind | None = None,
        model_name: str = "",
        dim: int | None = None,
        split: Split | None = None,
    ) -> MilvusIndex:
        """Creates an empty index, or opens an existing one of this model, to resume a killed build.

        Args:
            where: `milvus:./candidates.db` for Milvus Lite, `milvus:http://host:19530` or `https` for a server, either
                with `#name` for another collection than `polyencoder`. For a login, put `user:password@` before
                the host or, better, a token into the environment, MILVUS_TOKEN.
            kind: as `milvus` in `IndexOptions`; None for "auto", or the kind of the existing index.
            model_name, dim, split: as in `Maker`; None for the `split` of an existing index.

        Raises:
            PolyencoderError: the server cannot be reached, or the file is not of Milvus Lite.
            CheckpointError: the collection exists and was made by another model or program.
            ConfigError: the collection exists and is of another kind.
        """
        if kind is not None:
            check_choice("milvus", kind, get_args(IndexKind))
        maker = Maker.from_ranker(ranker, model_name=model_name, dim=dim, split=split)
        with ExitStack() as failed:
            collection = failed.enter_context(closing(MilvusCollection(where)))
            if (existing := collection.read_description()) is None:
                collection.create(dim=maker.dim, kind=kind or "auto", description=maker.to_json())
            else:
                maker = Maker.from_json(existing.text, collection.where)
                maker.check_model(ranker, where=collection.where)
                maker.check_split(split, where=collection.where)
            index = cls(collection, maker, ranker)
            if kind is not None and collection.is_flat != (kind == "flat"):
                other = "flat" if collection.is_flat else "auto"
                raise ConfigError(
                    f"{collection.where}: exists and is of the kind {other}, not {kind}; give another collection "
                    "(#name)"
                )
            failed.pop_all()
        return index

    @classmethod
    def _open_database(cls, where: str, stack: ExitStack) -> tuple[MilvusCollection, Maker]:
        collection = stack.enter_context(closing(MilvusCollection(where, create=False)))
        if (description := collection.read_description()) is None:
            raise CheckpointError(collection.how_to_make)
        return collection, Maker.from_json(description.text, collection.where)

    def _describe_kind(self) -> str:
        kind = "flat: results can be certified" if self.collection.is_flat else "auto: by the index that it chooses"
        return f"search: Milvus, {kind}"

    @property
    def remote(self) -> bool:
        return not self.collection.embedded

    def _read(self, ask: Callable[[Rows], T]) -> T:
        self._check_newest()
        return ask(self.collection)

    def _check_newest(self) -> None:
        """Raises CheckpointError if the collection is gone, or was replaced by one of another model."""
        if (newest := self.collection.read_description()) == self._description:
            return
        if newest is None:
            raise CheckpointError(self.collection.how_to_make)
        maker = Maker.from_json(newest.text, self.address)
        self._model.check(maker, where=self.address)
        self.collection.load()
        self.meta, self._description = maker, newest

    def check_searchable(self) -> None:
        self.collection.has_any()

    # Changing

    @staticmethod
    def _check_entry(entry: Entry, metadata: str) -> None:
        for name, value in {"id": entry.id, "text": entry.text, "metadata": metadata}.items():
            if (n := len(value.encode())) > MAX_BYTES:
                raise ValueError(f"its {name} has {n:,} bytes; Milvus holds at most {MAX_BYTES:,}")
        if (n := len(list_terms(entry.metadata))) > MAX_TERMS:
            raise ValueError(f"its metadata have {n:,} fields and values; Milvus holds at most {MAX_TERMS:,}")
        if (n := len(json.dumps(list_bounds(entry.metadata)))) > MAX_BYTES:
            raise ValueError(f"its metadata need {n:,} bytes for filters; Milvus holds at most {MAX_BYTES:,}")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `Index.changing`, as far as possible in Milvus, which has no transactions.

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

    def _run_steps(self, items: Iterable[T], step: Callable[[list[T]], int]) -> int:
        """Each step is one change, which stays if a later one fails; in a block of `changing` all steps are one."""
        with self._lock, nullcontext() if self._changes is None else self.changing():
            changed = 0
            for batch in iter_batches(items, ROWS_AT_ONCE):
                with self.changing():
                    changed += step(batch)
            return changed

    def _find_existing(self, ids: Iterable[str]) -> dict[str, Row]:
        keys, pending = {id_: hash_id(id_) for id_ in ids}, self._pending
        rows = super()._find_existing(id_ for id_, key in keys.items() if key not in pending)
        return rows | {id_: row for id_, key in keys.items() if (row := pending.get(key)) is not None}

    def _list_ids(self, filter: Filter) -> list[str]:
        pending, group = self._pending, parse_filter(filter)
        stored = [id_ for id_ in self.collection.list_ids(filter) if hash_id(id_) not in pending]
        return stored + [row.entry.id for row in pending.values() if row and passes(row.entry.metadata, group)]

    def _has_field(self, key: str, kinds: Collection[Kind] = ()) -> bool:
        pending, terms = self._pending, {*list_field_terms(key, kinds)}
        added = any(row and not terms.isdisjoint(list_terms(row.entry.metadata)) for row in pending.values())
        return added or self.collection.has_field(key, kinds, outside=pending)

    def _fetch_rows(self, keys: Iterable[str], fields: Sequence[Field]) -> dict[str, dict[str, Any]]:
        return self.collection.fetch_rows(keys, fields, strong=True)

    def _write(self, rows: Mapping[str, Row]) -> None:
        self._pending.update(rows)

    def _delete(self, keys: list[str]) -> None:
        self._pending.update(dict.fromkeys(keys))

    @property
    def _pending(self) -> ChainMap[str, Row | None]:
        """The changes that the block of `changing` has collected."""
        assert self._changes is not None
        return self._changes

    def _apply(self, changes: Mapping[str, Row | None]) -> None:
        """Writes and deletes rows. Each new text is encoded once."""
        for batch in iter_batches(((key, row) for key, row in changes.items() if row), ROWS_AT_ONCE):
            vectors = self._fetch_vectors(dict(batch))
            self.collection.write((row.entry, vectors[key]) for key, row in batch)
        if removed := [key for key, row in changes.items() if row is None]:
            self.collection.delete(removed)
        if changes:
            self.collection.flush()
