"""Encodes candidates into Parquet files, a block of rows each; a killed run resumes after the last complete file.

A part is written to a temporary file and renamed. Its schema names the model and the candidates, so that a resumed run
skips finished parts and rejects those of other runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from polyencoder.checks import checked_count
from polyencoder.distributed.encoding import EncodeCandidates, candidates_table
from polyencoder.errors import InputError, first_line
from polyencoder.index.build_options import SHARD_SIZE
from polyencoder.index.entries import Record, checked_records
from polyencoder.index.parts import fingerprints_of
from polyencoder.packages import require
from polyencoder.storage.files import atomic_write, reporting_write_errors

_CANDIDATES = b"polyencoder_candidates"


def encode_parts(
    candidates: Iterable[Record],
    folder: str | os.PathLike[str],
    encode: EncodeCandidates,
    *,
    rows: int = SHARD_SIZE,
    progress: bool = False,
) -> int:
    """Writes `part-000000000000.parquet`, ... with `rows` candidates each, for `vectors_from`; returns their number.

    With `rows` of an index's shards, and distinct texts, the vectors are bit-identical to those of an index that
    encodes the candidates itself.

    Args:
        candidates: as for `build_index`; read once, and never all in memory.
        folder: created if missing.
        rows: candidates per part, encoded at once: the most that a kill loses.
        progress: show a bar on stderr.

    Raises:
        InputError: no candidates, an invalid one, a part of other candidates, another model or other `rows`,
            or a folder that cannot be written.
    """
    folder, rows = Path(folder), checked_count("rows", rows)
    records = checked_records(candidates)
    total, written = 0, set[str]()
    with tqdm(desc="encoding", unit=" candidates", unit_scale=True, disable=not progress, dynamic_ncols=True) as bar:
        while (table := candidates_table(islice(records, rows))).num_rows:
            make_folder(folder)
            path = folder / part_name(total)
            total += table.num_rows
            written.add(path.name)
            write_part(path, table, encode)
            bar.update(table.num_rows)
    check_whole(folder, written)
    return total


def part_name(first: int) -> str:
    """The name of the part that begins with this candidate, counted from 0."""
    return f"part-{first:012d}.parquet"


def make_folder(folder: Path) -> None:
    """Makes the folder of the parts if missing."""
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_part(path: Path, table: Any, encode: EncodeCandidates) -> None:
    """Encodes the candidates of a table, of `candidates_table`, into a part, unless it is there.

    Raises InputError if the part that is there has other candidates, or another model's vectors.
    """
    table = table.replace_schema_metadata({_CANDIDATES: _digest(table)})
    if path.exists():
        return _check_same(path, table, encode)
    with reporting_write_errors(path), atomic_write(path) as temporary:
        require("pyarrow.parquet", extra="data").write_table(encode(table), temporary)


def check_whole(folder: Path, written: Collection[str]) -> None:
    """Raises InputError if there is no part, or one that was not `written`."""
    if not written:
        raise InputError(f"{folder}: no part was made, as there are no candidates: the input is empty")
    if others := sorted(path.name for path in folder.glob("part-*.parquet") if path.name not in written):
        raise InputError(f"{folder}: {others[0]} has other candidates than the other parts: remove it")


def _digest(table: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for row in table.to_pylist():
        digest.update(repr(list(row.values())).encode())
    return digest.hexdigest().encode()


def _check_same(path: Path, table: Any, encode: EncodeCandidates) -> None:
    """Raises InputError unless the part was made from this table."""
    try:
        metadata = require("pyarrow.parquet", extra="data").read_schema(path).metadata or {}
    except (require("pyarrow", extra="data").ArrowException, OSError) as error:
        raise InputError(f"{path}: damaged ({first_line(error)}); remove it") from None
    made = fingerprints_of(path)
    what = "candidates" if metadata.get(_CANDIDATES) != table.schema.metadata[_CANDIDATES] else ""
    if what or made is None or not made.fits(encode.fingerprints):
        raise InputError(f"{path}: was made from other {what or 'models'}; give another folder, or remove it")
