"""A Milvus collection: reads, writes and nearest-neighbour searches, with one-line errors.

The only module that uses pymilvus. It retries requests that a busy or restarting server refuses until `timeout`;
writes, which are long and repeatable, are retried for longer.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyencoder.data.loader import in_batches
from polyencoder.errors import (
    CheckpointError,
    ConfigError,
    InputError,
    NoAnswerError,
    PolyencoderError,
    first_line,
)
from polyencoder.index.milvus.rows import MAX_BYTES, any_of
from polyencoder.index.rows import key_of
from polyencoder.packages import require

MILVUS = "milvus:"
"""The beginning of the address of a Milvus collection."""
LONGEST_LIST = 16_384
"""The maximum number of results per vector in Milvus."""
IndexKind = Literal["auto", "flat"]
"""The kind of Milvus index: "auto", as Milvus chooses, mostly a graph; "flat", comparing all vectors."""

T = TypeVar("T")

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
_BYTES_A_PAGE = 32 << 20


class Description(NamedTuple):
    """What a collection says of itself."""

    number: int
    """Another one if a collection of this name was created anew; always 0 in Milvus Lite."""
    text: str
    """As it was given to `create`."""
    kind: str | None
    """Of its index: Milvus Lite has no other sign of a collection that was created anew."""


class MilvusCollection:
    """A collection on a server, or in a file of Milvus Lite."""

    def __init__(self, where: str, *, create: bool = True) -> None:
        """Connect.

        Args:
            where: `milvus:`, a server's URL or a file's name, and, for another collection than `polyencoder`, # and its
                name.
            create: create the file if missing.
        """
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
                else f"no connection ({self._reason(error)}); is the server running, are the address and, in the "
                f"environment, {_TOKEN} right?"
            )
            kind = PolyencoderError if self.embedded else self._kind(error)
            raise kind(f"{self.where}: {what}") from None

    def close(self) -> None:
        self._client.close()

    # What it is

    def description(self) -> Description | None:
        """The description from `create`; None if there is no such collection.

        Raises CheckpointError if it was not made by `create`.
        """
        with self._explained():
            if not self._client.has_collection(self.name, timeout=self._timeout):
                return None
            found = self._client.describe_collection(self.name, timeout=self._timeout)
        if (text := found["properties"].get(_PROPERTY)) is None:
            raise CheckpointError(f"{self.where}: the collection {self.name} exists, but was not made by polyencoder")
        return Description(found["collection_id"], str(text), found["properties"].get(_KIND))

    def create(self, *, dim: int, kind: IndexKind, description: str) -> None:
        """Creates the collection."""
        types = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", types.VARCHAR, is_primary=True, max_length=len(key_of("")))
        schema.add_field("id", types.VARCHAR, max_length=MAX_BYTES)
        schema.add_field("text", types.VARCHAR, max_length=MAX_BYTES)
        schema.add_field("metadata", types.JSON)
        schema.add_field("norm", types.FLOAT)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dim)
        index = self._milvus.MilvusClient.prepare_index_params()
        index.add_index("vector", index_type=_INDEX_TYPES[kind], metric_type="IP")
        with self._explained():
            self._client.create_collection(
                self.name,
                schema=schema,
                index_params=index,
                properties={_PROPERTY: description, _KIND: kind},
                consistency_level="Session",  # visible to this writer at once, to others a moment later
            )

    def load(self) -> bool:
        """Loads the collection on the server. Returns whether its lists are exactly the nearest neighbours."""
        with self._explained():
            self._client.load_collection(self.name)  # without a time limit
            index = self._client.describe_index(self.name, "vector", timeout=self._timeout)
        return bool(index["index_type"] == _INDEX_TYPES["flat"])

    # Reading. A condition is a Milvus expression; the empty text means none.

    def count(self, condition: str = "") -> int:
        """The number of rows with this condition."""
        with self._explained():
            (row,) = self._query(filter=condition, output_fields=["count(*)"])
        return int(row["count(*)"])

    def any(self, condition: str) -> bool:
        """Whether a row has this condition."""
        with self._explained():
            return bool(self._query(filter=condition, limit=1, output_fields=["key"]))

    def nearest(self, vectors: np.ndarray[Any, Any], length: int, condition: str = "") -> list[dict[str, float]]:
        """Nearest neighbours of each vector [dim]: keys and inner products, largest first."""
        with self._explained():
            lists = self._loaded(
                partial(
                    self._client.search,
                    self.name,
                    data=list(vectors),
                    anns_field="vector",
                    limit=length,
                    filter=condition,
                    output_fields=["key"],  # not empty, which means all fields in Milvus Lite
                    search_params={"metric_type": "IP"},
                    timeout=self._timeout,
                )
            )
        return [{hit["key"]: float(hit["distance"]) for hit in hits} for hits in lists]

    def rows(self, keys: Iterable[str], fields: Sequence[str], *, strong: bool = False) -> dict[str, dict[str, Any]]:
        """These fields of the existing rows with these keys. `strong`: including all writes of other clients so far."""
        found: dict[str, dict[str, Any]] = {}
        options = {"consistency_level": "Strong"} if strong else {}
        for some in in_batches(keys, _ROWS_A_REQUEST if "text" in fields else 8 * _ROWS_A_REQUEST):
            with self._explained():
                rows = self._query(filter=any_of("key", some), output_fields=["key", *fields], **options)
            found |= {row["key"]: row for row in rows}
        return found

    def vectors(self, keys: Iterable[str], *, dim: int) -> tuple[list[str], Tensor]:
        """The vectors of these keys, float32 [n, dim], ordered by key, without missing ones."""
        rows = self.rows(keys, ["vector"])
        there = sorted(rows)
        return there, _matrix([rows[key]["vector"] for key in there], dim=dim)

    def pages(self, condition: str = "", *, dim: int) -> Iterator[tuple[list[str], Tensor]]:
        """Yields all rows of this condition in pages like `vectors`, ordered by key."""
        with self._explained():
            pages = self._loaded(
                partial(
                    self._client.query_iterator,
                    self.name,
                    batch_size=min(LONGEST_LIST, max(1, _BYTES_A_PAGE // (4 * dim))),
                    filter=condition,
                    output_fields=["key", "vector"],
                    timeout=self._timeout,
                )
            )
            try:
                while rows := pages.next():
                    yield [row["key"] for row in rows], _matrix([row["vector"] for row in rows], dim=dim)
            finally:
                pages.close()

    def _query(self, **options: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._loaded(
            partial(self._client.query, self.name, timeout=self._timeout, **options)
        )
        return rows

    def _loaded(self, request: Callable[[], T]) -> T:
        """Makes a request; a restarted server may have to load the collection first."""
        try:
            return request()
        except self._milvus.MilvusException as error:
            if error.code != _NOT_LOADED:
                raise
        self._client.load_collection(self.name, timeout=self._timeout)
        return request()

    # Writing

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Inserts rows, replacing those with the same keys."""
        for some in in_batches(rows, _ROWS_A_REQUEST):
            self._persist(partial(self._client.upsert, self.name, data=some, timeout=self._timeout))

    def delete(self, keys: Iterable[str]) -> None:
        for some in in_batches(keys, _ROWS_A_REQUEST):
            self._persist(partial(self._client.delete, self.name, filter=any_of("key", some), timeout=self._timeout))

    def flush(self) -> None:
        """Ends a change: Milvus Lite searches flushed data ten times faster; a server's deletions become visible."""
        with self._explained():
            if self.embedded:
                self._client.flush(self.name)
            else:  # without it, the client that deleted rows may still find them for a moment (Milvus 2.3)
                self._query(limit=1, output_fields=["key"], consistency_level="Strong")

    def _persist(self, request: Callable[[], object]) -> None:
        """Repeats an idempotent request while the server reports a temporary error."""
        with self._explained():
            for pause in _WRITE_PAUSES:
                try:
                    self._loaded(request)
                    return
                except self._milvus.MilvusException as error:
                    if not getattr(error, "retriable", False):
                        raise
                    time.sleep(pause)
            self._loaded(request)

    # Errors

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            kind = self._kind(error)
            lost = "Milvus does not answer; is the server still running?"
            what = lost if kind is NoAnswerError else "Milvus refused the request"
            raise kind(f"{self.where}: {what} ({self._reason(error)})") from None

    def _kind(self, error: Exception) -> type[PolyencoderError]:
        """Of our error: whether the server does not answer, or refuses."""
        refused = isinstance(error, self._milvus.MilvusException) and error.code not in self._lost
        for one in (error, error.__cause__):  # pymilvus has one code for all connections that fail
            refused = refused or (isinstance(one, self._grpc.RpcError) and one.code().name in _REFUSALS)
        return PolyencoderError if refused or isinstance(error, ValueError) else NoAnswerError

    def _reason(self, error: BaseException) -> str:
        details = getattr(error, "message", None) or (error.details() if hasattr(error, "details") else None)
        return first_line(Exception(details or error))

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
    """Filters out log lines about optional methods that Milvus Lite lacks."""
    return record.exc_info is None or not isinstance(record.exc_info[1], NotImplementedError)


def _matrix(vectors: list[Any], *, dim: int) -> Tensor:
    return torch.from_numpy(np.asarray(vectors, dtype=np.float32).reshape(-1, dim))
