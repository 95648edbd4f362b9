"""Blocks of Parquet files that workers encode, each into a part of its own: what `on_ray` and `on_spark` distribute.

A block is some rows of one file, named by its place, so workers read the files themselves, and which worker encodes a
block, and after which others, changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from polyencoder.checks import checked_count
from polyencoder.data.readers import expand
from polyencoder.distributed.encoding import EncodeCandidates, candidates_table
from polyencoder.distributed.parts import check_whole, make_folder, part_name, write_part
from polyencoder.errors import InputError, PolyencoderError, first_line
from polyencoder.index.build_options import SHARD_SIZE
from polyencoder.index.candidates import candidate_of, plain
from polyencoder.index.parts import Paths
from polyencoder.packages import require


class Block(NamedTuple):
    """Some rows of a file, and where their vectors are written."""

    file: str
    first: int
    """The first row, from 0."""
    rows: int
    part: str


class Done(NamedTuple):
    """A block that is written, or why it is not."""

    rows: int
    error: str


def encode_block(encode: EncodeCandidates, block: Block) -> Done:
    """Writes the part of a block, unless it is there. An error is returned: engines bury those that are raised."""
    try:
        table = candidates_table(
            candidate_of(plain(record), where=f"{block.file}, row {row}")
            for row, record in enumerate(_records(block), start=block.first + 1)
        )
        write_part(Path(block.part), table, encode)
    except PolyencoderError as error:
        return Done(0, str(error))
    return Done(table.num_rows, "")


Work = Callable[[Block], Done]
Engine = Callable[[Sequence[Block], Work], Iterable[Done]]
"""Calls the second, which can be pickled, with each of the first, anywhere and in any order."""


def encode_blocks(
    paths: Paths,
    folder: str | os.PathLike[str],
    encode: EncodeCandidates,
    *,
    engine: Engine,
    rows: int = SHARD_SIZE,
) -> int:
    """Encodes the candidates of Parquet files as `encode_parts` does, but each file is cut into parts of its own.

    A killed run resumes with the blocks whose parts are missing. Workers need the files, the folder and the model
    under the same names. The parts are those of one process bit by bit, if each worker has as many threads as it.

    Args:
        paths: names or globs; columns as of `EncodeCandidates`.
        folder: created if missing.
        engine: `on_ray.RayEngine` or `on_spark.SparkEngine`.
        rows: candidates per part, and the most that a kill of a worker loses.

    Returns:
        The number of candidates.

    Raises:
        InputError: as of `encode_parts`, and a file that is not Parquet.
    """
    folder = Path(folder).absolute()
    blocks = list(_blocks(paths, folder, rows=checked_count("rows", rows)))
    make_folder(folder)
    total = 0
    for done in engine(blocks, partial(encode_block, encode)) if blocks else ():  # no cluster is started for nothing
        if done.error:
            raise InputError(done.error)
        total += done.rows
    check_whole(folder, {Path(block.part).name for block in blocks})
    return total


def _blocks(paths: Paths, folder: Path, *, rows: int) -> Iterator[Block]:
    total = 0
    for path in expand(paths):
        file = os.path.abspath(path)
        with _opened(file) as table:
            count = table.metadata.num_rows
        for first in range(0, count, rows):
            yield Block(file, first, min(rows, count - first), str(folder / part_name(total + first)))
        total += count


def _records(block: Block) -> Iterator[dict[str, Any]]:
    """The rows of a block; only the row groups that they are in are read."""
    arrow = require("pyarrow", extra="data")
    try:
        with _opened(block.file) as table:
            start, before = 0, 0
            groups: list[int] = []
            for group in range(table.num_row_groups):
                end = start + table.metadata.row_group(group).num_rows
                if start < block.first + block.rows and end > block.first:
                    before = before if groups else block.first - start
                    groups.append(group)
                start = end
            records = table.read_row_groups(groups).slice(before, block.rows).to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{block.file}: not a Parquet file, or damaged ({first_line(error)})") from None
    yield from records


def _opened(path: str) -> Any:
    arrow = require("pyarrow", extra="data")
    try:
        return require("pyarrow.parquet", extra="data").ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: not a Parquet file, or damaged ({first_line(error)}); workers read Parquet"
        ) from None
