"""Rows of Parquet files, a few at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from polyencoder.data.readers.bad import OnBad, raise_it
from polyencoder.data.readers.sources import DamagedFile, DataFile, Source, is_compressed, opened
from polyencoder.errors import InputError, first_line
from polyencoder.packages import require

__all__ = ["parquet_rows"]

ROWS_AT_ONCE = 1024


def parquet_rows(
    source: Source, *, columns: Sequence[str] | None = None, bad: OnBad = raise_it
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file, each with its place: (`file.parquet, row 12`, {column: value}); the first is row 1.

    Args:
        source: a path or an open `DataFile`.
        columns: those that are wanted, the only ones read; None: all.
        bad: gets the error of a file that is damaged, or from some row on.

    Raises:
        ConfigError: pyarrow is not installed.
        InputError: a file that cannot be opened, or without one of `columns`; and what `bad` raises.
    """
    parquet = require("pyarrow.parquet", extra="data")
    damage = (require("pyarrow", extra="data").ArrowException, OSError)
    row = 0
    with opened(source) as file:
        path = _path_on_disk(file)
        try:
            with parquet.ParquetFile(path) as table:
                names = table.schema_arrow.names
                for name in columns or ():
                    if name not in names:
                        raise InputError(f"{path}: no column {name!r}; it has: {', '.join(names)}")
                wanted = None if columns is None else list(columns)
                for batch in table.iter_batches(ROWS_AT_ONCE, columns=wanted):
                    for record in batch.to_pylist():
                        row += 1
                        file.fraction = row / table.metadata.num_rows
                        yield f"{path}, row {row}", record
        except damage as error:
            bad(DamagedFile(f"{path}, after row {row}: not a Parquet file, or damaged ({first_line(error)})"))


def _path_on_disk(file: DataFile) -> str:
    """Parquet is read from its end, by its own reader: that takes a file, not a stream."""
    if is_compressed(file.path) or not os.path.isfile(file.path):
        raise InputError(f"{file.path}: Parquet must be an ordinary file, neither compressed as a whole nor a pipe")
    return file.path
