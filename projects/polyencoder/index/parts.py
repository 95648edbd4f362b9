"""Reads candidates with existing vectors: Parquet, Arrow and Feather, or numpy's `.npy` beside JSON lines.

The columns are `text`, `vector` (a list of float16, float32 or float64, of fixed size or not), and optionally `id` and
`metadata` (an object, or the JSON text of one). All other columns are metadata, too. Files are read some thousand rows
at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.data.readers import OnBad, expand, raise_it, records
from polyencoder.errors import InputError, first_line
from polyencoder.index.candidates import candidate_of, plain
from polyencoder.index.entries import Candidate
from polyencoder.index.given import checked_vector
from polyencoder.index.meta import Fingerprints
from polyencoder.packages import require

FINGERPRINTS = b"polyencoder_fingerprints"
"""The key in the metadata of a file's schema: the JSON of the `Fingerprints` of the encoder that made its vectors."""

ARROW = (".arrow", ".feather", ".ipc")
_ROWS_AT_ONCE = 4096

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def vectors_from(paths: Paths, *, bad: OnBad = raise_it) -> Iterator[Candidate]:
    """Yields the candidates of files with their vectors, float32 [dim], in order.

    The names may be globs and comma-separated lists. `x.npy`, [n, dim], belongs to `x.jsonl`, in its order.

    Raises:
        InputError: a file that cannot be read; and, unless `bad` handles it, a candidate as in
            `candidates_from`, or a vector that is missing, of another dimension than the first one, not finite, or
            zero. It names the file and the row, the first being 1.
    """
    dim = None
    for path in expand(paths):
        for where, record, vector in _reader(path)(path):
            try:
                candidate = checked_vector(candidate_of(record, where=where)._replace(vector=vector), dim=dim)
            except InputError as error:
                bad(error)
                continue
            dim = dim or len(vector)
            yield candidate


def fingerprints_of(paths: Paths) -> Fingerprints | None:
    """The fingerprints that Parquet and Arrow files name for their vectors; None if no file names any.

    Raises InputError if they differ.
    """
    known: tuple[str, Fingerprints] | None = None
    for path in expand(paths):
        if (found := _stated(path)) is None:
            continue
        if known is not None and not found.fits(known[1]):
            raise InputError(
                f"{path}: its vectors come from another encoder ({found.model}) than those of {known[0]} "
                f"({known[1].model}); an index needs the vectors of one encoder"
            )
        known = known or (path, found)
    return None if known is None else known[1]


Row = tuple[str, dict[str, Any], Any]


def _reader(path: str) -> Callable[[str], Iterator[Row]]:
    suffix = Path(path).suffix.lower()
    if suffix == ".npy":
        return _pair
    if suffix == ".parquet" or suffix in ARROW:
        return _table
    raise InputError(f"{path}: vectors are read from .parquet, {', '.join(ARROW)} and .npy files (with .jsonl beside)")


def _pair(path: str) -> Iterator[Row]:
    beside = Path(path).with_suffix(".jsonl")
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not an array of numpy, or damaged ({first_line(error)})") from None
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        found = f"{vectors.dtype} {list(vectors.shape)}" if isinstance(vectors, np.ndarray) else "several arrays"
        raise InputError(f"{path}: has {found}; it must be floats [candidates, dim]")
    if not beside.exists():
        raise InputError(f"{path}: no {beside.name} beside it, with the text of each vector")
    n = 0
    for n, (where, record) in enumerate(records(beside), start=1):
        if n > len(vectors):
            raise InputError(f"{where}: a record without a vector; {path} has {len(vectors):,}")
        yield f"{path}, row {n}", record, vectors[n - 1]
    if n < len(vectors):
        raise InputError(f"{path}, row {n + 1}: a vector without a record; {beside} has {n:,}")


def _table(path: str) -> Iterator[Row]:
    arrow = require("pyarrow", extra="data")
    n = 0
    try:
        for batch in _batches(path):
            names = batch.schema.names
            if missing := [name for name in ("text", "vector") if name not in names]:
                raise InputError(f"{path}: has no column {missing[0]!r}; it has {', '.join(map(repr, names))}")
            vectors = _matrix(batch.column(names.index("vector")), path=path)
            others = batch.select([name for name in names if name != "vector"]).to_pylist()
            for record, vector in zip(others, vectors, strict=True):
                n += 1
                yield f"{path}, row {n}", plain(record), vector
    except (arrow.ArrowException, OSError) as error:
        kind = "Parquet" if path.lower().endswith(".parquet") else "Arrow"
        raise InputError(f"{path}, after row {n}: not a {kind} file, or damaged ({first_line(error)})") from None


def _batches(path: str) -> Iterator[Any]:
    """Record batches of a file, of `_ROWS_AT_ONCE` rows at most."""
    if path.lower().endswith(".parquet"):
        with require("pyarrow.parquet", extra="data").ParquetFile(path) as table:
            yield from table.iter_batches(_ROWS_AT_ONCE)
        return
    with _opened_arrow(path) as reader:
        whole = (
            (reader.get_batch(i) for i in range(reader.num_record_batches))
            if hasattr(reader, "num_record_batches")
            else reader
        )
        for batch in whole:
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield batch.slice(first, _ROWS_AT_ONCE)


def _opened_arrow(path: str) -> Any:
    """Opens Arrow's file format (also Feather) or its stream format."""
    arrow = require("pyarrow", extra="data")
    source = arrow.memory_map(path)
    try:
        return arrow.ipc.open_file(source)
    except arrow.ArrowInvalid:
        source.seek(0)
        return arrow.ipc.open_stream(source)


def _matrix(column: Any, *, path: str) -> Iterable[Any]:
    """The vector of each row of a column, float [dim]; None for null."""
    types = require("pyarrow", extra="data").types
    kind = column.type
    fixed = types.is_fixed_size_list(kind)
    if not (fixed or types.is_list(kind) or types.is_large_list(kind)) or not types.is_floating(kind.value_type):
        raise InputError(f"{path}: its column `vector` is {kind}; it must be a list of floats, of 16 to 64 bits")
    if column.null_count:
        return (None if one is None else np.asarray(one, dtype=np.float64) for one in column.to_pylist())
    values = column.flatten()
    flat = values.to_numpy(zero_copy_only=False)  # null becomes nan
    if fixed:
        return flat.reshape(-1, kind.list_size)
    offsets = column.offsets.to_numpy()
    return np.split(flat, (offsets[1:-1] - offsets[0])) if len(column) else []


def _stated(path: str) -> Fingerprints | None:
    if not path.lower().endswith((".parquet", *ARROW)):
        return None
    arrow = require("pyarrow", extra="data")
    try:
        if path.lower().endswith(".parquet"):
            schema = require("pyarrow.parquet", extra="data").read_schema(path)
        else:
            with _opened_arrow(path) as reader:
                schema = reader.schema
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not Parquet or Arrow, or damaged ({first_line(error)})") from None
    if (written := (schema.metadata or {}).get(FINGERPRINTS)) is None:
        return None
    try:
        model, tokenizer = json.loads(written)
        return Fingerprints(str(model), str(tokenizer))
    except (ValueError, TypeError):
        raise InputError(f"{path}: the fingerprint in its schema cannot be read: {written!r:.60}") from None
