"""A Milvus collection as `row_search.Rows`, with writes and one-line errors. The only module that uses pymilvus.

Requests that a busy or restarting server refuses are repeated until `timeout`; writes, which are long and repeatable,
for longer.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from polyencoder.data.loader import iter_batches
from polyencoder.errors import CheckpointError, ConfigError, InputError, NoAnswerError, PolyencoderError, get_first_line
from polyencoder.index.entries import format_metadata
from polyencoder.index.filters import Filter
from polyencoder.index.row_search import Field
from polyencoder.index.rows import Entry, hash_id, round_norm_up
from polyencoder.index.terms import LENGTH, list_bounds, list_field_terms, list_terms, write_filter
from polyencoder.index.values import Kind
from polyencoder.packages import require
from polyencoder.search.contexts import Array

MILVUS = "milvus:"
"""The beginning of the address of a Milvus collection."""
MAX_BYTES, MAX_TERMS = 65_535, 4_096
"""The most that Milvus holds: the bytes of a text, id or metadata in UTF-8, and the terms of a row."""
IndexKind = Literal["auto", "flat"]
"""The kind of Milvus index: "auto", as Milvus chooses, mostly a graph; "flat", comparing all vectors."""

_INDEX_TYPES = {"auto": "AUTOINDEX", "flat": "FLAT"}
_DEFAULT_NAME = "polyencoder"
_PROPERTY, _KIND = "polyencoder", "polyencoder_kind"
_TOKEN = "MILVUS_TOKEN"
_UNAVAILABLE = 2  # error codes of Milvus, and of pymilvus if it cannot reconnect
_NOT_LOADED = 101
_REFUSALS = {"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED"}  # of gRPC
_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 60
_WRITE_PAUSES = (0.5, 1.0, 2.0, 4.0)
_ROWS_A_REQUEST = 256  # a request may have 64 MB: 256 of the longest texts with the longest metadata fit
_ROWS_A_PAGE = 4096
_LONGEST_LIST = 16_384  # Milvus's maximum of results


class Description(NamedTuple):
    """A collection's description of itself."""

    number: int
    """Changes if a collection of this name is created anew; always 0 in Milvus Lite."""
    text: str
    """The text that `create` got."""
    kind: str | None
    """The kind of its index: Milvus Lite has no other sign of a collection that was created anew."""


class MilvusCollection:
    """A collection on a server, or in a file of Milvus Lite."""

    longest_list = _LONGEST_LIST

    def __init__(self, where: str, *, create: bool = True) -> None:
        """Connects to an address as for `MilvusIndex.create`; `create` makes a missing file."""
        milvus, grpc = require("pymilvus", extra="milvus"), require("grpc", extra="milvus")
        for logger in ("pymilvus", "milvus_lite"):  # they also log, with a traceback, what they raise
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        logging.getLogger("grpc._server").addFilter(_is_no_missing_method)
        self._milvus: Any = milvus
        self._grpc: Any = grpc
        self._errors = (milvus.MilvusException, grpc.RpcError)
        self._lost = {_UNAVAILABLE, *grpc.StatusCode}
        uri, _, name = where.removeprefix(MILVUS).partition("#")
        self.name = name or _DEFAULT_NAME
        self.where = MILVUS + re.sub(r"^(\w+://).*@", r"\1", uri) + (f"#{name}" if name else "")
        """For messages: without a password."""
        if not re.fullmatch(r"[A-Za-z_]\w{0,254}", self.name, re.ASCII):
            raise ConfigError(f"{self.where}: {self.name!r} cannot name a collection; use letters, digits and _")
        self.embedded = not re.match(r"(https?|tcp)://", uri)
        self._timeout = None if self.embedded else _ANSWER_SECONDS
        if self.embedded:
            self._check_file(Path(uri), create=create)
        try:
            self._client: Any = milvus.MilvusClient(uri, token=os.environ.get(_TOKEN, ""), timeout=_CONNECT_SECONDS)
        except (*self._errors, ValueError) as error:
            what = (
                "cannot be opened; it is not a database of this milvus-lite, or another process has it open"
                if self.embedded
                else f"no connection ({self._find_reason(error)}); is the server running, are the address and, in the "
                f"environment, {_TOKEN} right?"
            )
            kind = PolyencoderError if self.embedded else self._choose_error(error)
            raise kind(f"{self.where}: {what}", public="no connection to the index's server; is it running?") from None

    def close(self) -> None:
        self._client.close()

    # What it is

    def read_description(self) -> Description | None:
        """The description from `create`; None without the collection. CheckpointError if it is not of `create`."""
        with self._explaining_errors():
            if not self._client.has_collection(self.name, timeout=self._timeout):
                return None
            details = self._client.describe_collection(self.name, timeout=self._timeout)
        if (text := details["properties"].get(_PROPERTY)) is None:
            raise CheckpointError(f"{self.where}: the collection {self.name} exists, but was not made by polyencoder")
        return Description(details["collection_id"], str(text), details["properties"].get(_KIND))

    def create(self, *, dim: int, kind: IndexKind, description: str) -> None:
        """Creates the collection."""
        types = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", types.VARCHAR, is_primary=True, max_length=len(hash_id("")))
        schema.add_field("id", types.VARCHAR, max_length=MAX_BYTES)
        schema.add_field("text", types.VARCHAR, max_length=MAX_BYTES)
        schema.add_field("metadata", types.VARCHAR, max_length=MAX_BYTES)
        term_options = {"element_type": types.VARCHAR, "max_capacity": MAX_TERMS, "max_length": LENGTH}
        schema.add_field("terms", types.ARRAY, **term_options)
        schema.add_field("bounds", types.JSON)
        schema.add_field("norm", types.FLOAT)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dim)
        index = self._milvus.MilvusClient.prepare_index_params()
        index.add_index("vector", index_type=_INDEX_TYPES[kind], metric_type="IP")
        with self._explaining_errors():
            self._client.create_collection(
                self.name,
                schema=schema,
                index_params=index,
                properties={_PROPERTY: description, _KIND: kind},
                consistency_level="Session",  # visible to this writer at once, to others a moment later
            )

    def load(self) -> None:
        """Loads the collection on the server, and asks how its lists are made."""
        with self._explaining_errors():
            self._client.load_collection(self.name)  # without a time limit
            index = self._client.describe_index(self.name, "vector", timeout=self._timeout)
        self.is_flat = index["index_type"] == _INDEX_TYPES["flat"]

    # Reading

    def count(self, filter: Filter | None = None, *, limit: int | None = None) -> int:
        with self._explaining_errors():
            (row,) = self._run_query(filter=_write_expression(filter), output_fields=["count(*)"])
        return int(row["count(*)"])

    def count_texts(self, filter: Filter | None = None) -> int:
        """The number of rows: Milvus cannot count different texts."""
        return self.count(filter)

    def list_ids(self, filter: Filter) -> list[str]:
        """The ids of the rows that pass the filter."""
        return [row["id"] for page in self._iter_pages(_write_expression(filter), "id") for row in page]

    def has_field(self, key: str, kinds: Collection[Kind] = (), *, outside: Collection[str] = ()) -> bool:
        """See `Index.has_field`; `outside` are keys of rows that do not count."""
        expression = _match_terms(list_field_terms(key, kinds))
        if not outside:
            return self.has_any(expression)
        return any(row["key"] not in outside for page in self._iter_pages(expression, "key") for row in page)

    def has_any(self, expression: str = "") -> bool:
        """Whether a row passes a Milvus expression; Milvus Lite counts unloaded rows, but finds none."""
        with self._explaining_errors():
            return bool(self._run_query(filter=expression, limit=1, output_fields=["key"]))

    def has_exact_lists(self, available: int) -> bool:
        return self.is_flat

    def search_nearest(
        self, queries: Array, length: int, *, filter: Filter | None, effort: int | None, exact: bool
    ) -> list[dict[str, float]]:
        with self._explaining_errors():
            lists = self._request(
                self._client.search,
                data=list(queries),
                anns_field="vector",
                limit=length,
                filter=_write_expression(filter),
                output_fields=["key"],  # not empty, which means all fields in Milvus Lite
                search_params={"metric_type": "IP"},
            )
        return [{hit["key"]: float(hit["distance"]) for hit in hits} for hits in lists]

    def bound_norm(self) -> float:
        """A norm that no vector exceeds, from the norm of any row; inf if one is a thousand times longer."""
        with self._explaining_errors():
            (row,) = self._run_query(limit=1, output_fields=["norm"])
        norms = (factor * float(row["norm"]) for factor in (2, 16, 1024))
        return next((norm for norm in norms if not self.has_any(f"norm > {norm!r}")), np.inf)

    def fetch_rows(
        self, keys: Iterable[str], fields: Sequence[Field], *, strong: bool = False
    ) -> dict[str, dict[str, Any]]:
        """See `Rows.fetch_rows`; `strong` includes all writes of other clients so far."""
        by_key: dict[str, dict[str, Any]] = {}
        options = {"consistency_level": "Strong"} if strong else {}
        for batch in iter_batches(keys, _ROWS_A_REQUEST if "text" in fields else 8 * _ROWS_A_REQUEST):
            with self._explaining_errors():
                rows = self._run_query(filter=_match_keys(batch), output_fields=["key", *fields], **options)
            by_key |= {row["key"]: _convert_row(row) for row in rows}
        return by_key

    def iter_pages(self, filter: Filter | None = None) -> Iterator[tuple[list[str], Array]]:
        for rows in self._iter_pages(_write_expression(filter), "key", "vector"):
            yield [row["key"] for row in rows], np.asarray([row["vector"] for row in rows], dtype=np.float32)

    def _iter_pages(self, expression: str, *fields: str) -> Iterator[list[dict[str, Any]]]:
        with self._explaining_errors():
            pages = self._request(
                self._client.query_iterator,
                batch_size=_ROWS_A_PAGE,
                filter=expression,
                output_fields=[*fields],
            )
            try:
                while rows := pages.next():
                    yield rows
            finally:
                pages.close()

    def _run_query(self, **options: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._request(self._client.query, **options)
        return rows

    def _request(self, request: Callable[..., Any], **options: Any) -> Any:
        """Makes a request; a restarted server may have to load the collection first."""
        try:
            return request(self.name, timeout=self._timeout, **options)
        except self._milvus.MilvusException as error:
            if error.code != _NOT_LOADED:
                raise
        self._client.load_collection(self.name, timeout=self._timeout)
        return request(self.name, timeout=self._timeout, **options)

    # Writing

    def write(self, rows: Iterable[tuple[Entry, Array]]) -> None:
        """Inserts rows, replacing those with the same keys."""
        written = (
            {
                **entry._asdict(),
                "key": hash_id(entry.id),
                "metadata": format_metadata(entry.metadata) or "{}",
                "terms": list_terms(entry.metadata),
                "bounds": list_bounds(entry.metadata),
                "norm": round_norm_up(vector),
                "vector": vector,
            }
            for entry, vector in rows
        )
        for batch in iter_batches(written, _ROWS_A_REQUEST):
            self._persist(self._client.upsert, data=batch)

    def delete(self, keys: Iterable[str]) -> None:
        for batch in iter_batches(keys, _ROWS_A_REQUEST):
            self._persist(self._client.delete, filter=_match_keys(batch))

    def flush(self) -> None:
        """Ends a change: Milvus Lite searches flushed data ten times faster; a server's deletions become visible."""
        with self._explaining_errors():
            if self.embedded:
                self._client.flush(self.name)
            else:  # without it, the client that deleted rows may still find them for a moment (Milvus 2.3)
                self._run_query(limit=1, output_fields=["key"], consistency_level="Strong")

    def _persist(self, request: Callable[..., object], **options: Any) -> None:
        """Repeats an idempotent request while the server reports a temporary error."""
        with self._explaining_errors():
            for pause in _WRITE_PAUSES:
                try:
                    self._request(request, **options)
                    return
                except self._milvus.MilvusException as error:
                    if not getattr(error, "retriable", False):
                        raise
                    time.sleep(pause)
            self._request(request, **options)

    # Errors

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            kind = self._choose_error(error)
            lost = "Milvus does not answer; is the server still running?"
            what = lost if kind is NoAnswerError else "Milvus refused the request"
            raise kind(f"{self.where}: {what} ({self._find_reason(error)})", public=what) from None

    def _choose_error(self, error: Exception) -> type[PolyencoderError]:
        """The class of our error: whether the server does not answer, or refuses."""
        refused = isinstance(error, self._milvus.MilvusException) and error.code not in self._lost
        for cause in (error, error.__cause__):  # pymilvus has one code for all connections that fail
            refused = refused or (isinstance(cause, self._grpc.RpcError) and cause.code().name in _REFUSALS)
        return PolyencoderError if refused or isinstance(error, ValueError) else NoAnswerError

    def _find_reason(self, error: BaseException) -> str:
        details = getattr(error, "message", None) or (error.details() if hasattr(error, "details") else None)
        return get_first_line(Exception(details or error))

    @property
    def how_to_make(self) -> str:
        return (
            f"{self.where}: no index (no collection {self.name}); make one with `Ranker.index` or `polyencoder index`"
        )

    def _check_file(self, path: Path, *, create: bool) -> None:
        """Explains invalid files, for which pymilvus only reports "failed"."""
        if path.suffix != ".db":
            raise ConfigError(
                f"{self.where}: neither a server, as in {MILVUS}http://host:19530, nor a file of Milvus Lite, whose "
                f"name ends with .db, as in {MILVUS}./candidates.db"
            )
        require("milvus_lite", extra="milvus")
        if not create and not path.exists():
            raise CheckpointError(self.how_to_make)
        if not path.parent.is_dir():
            raise InputError(f"{self.where}: there is no folder {path.parent}")


def _is_no_missing_method(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], NotImplementedError)


def _convert_row(row: dict[str, Any]) -> dict[str, Any]:
    if "metadata" in row:
        row["metadata"] = json.loads(row["metadata"])
    if "vector" in row:
        row["vector"] = np.asarray(row["vector"], dtype=np.float32)
    return row


def _write_expression(filter: Filter | None) -> str:
    """A filter as a Milvus expression; the empty text for none. Keys, terms and bounds need no quoting."""
    return write_filter(
        filter, any_of=_match_terms, compare=lambda name, sign, bound: f'bounds["{name}"] {sign} "{bound}"'
    )


def _match_terms(terms: Sequence[str]) -> str:
    return f"array_contains_any(terms, {json.dumps(terms)})" if terms else _match_keys([])


def _match_keys(keys: Sequence[str]) -> str:
    return f"key in {json.dumps(keys)}"
