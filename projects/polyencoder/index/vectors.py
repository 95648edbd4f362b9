"""The vectors of an index on disk: numpy files, mapped into memory, in the order of their rows.

`vectors-000000065536-9f86d081884c7d65.npy` holds the rows from 65,536 on, [n, dim], as float32, float16, int8, or as
uint16 with the bits of bfloat16, a type that numpy does not have. Beside it, with `.int8` before `.npy`, are the same
rows in 8 bits, which a search reads, and with `.bounds` the scale of each row, the length of the row times its scale,
and how far that is from the vector, [n, 3]. Vectors that are stored as int8 are the rows times their scales, and have
`.bounds` alone. Token vectors are in two more files, see `read_token_rows`. The name ends with a tag: the id of the
build that wrote the file, or a digest of that id and the texts. So a file name is never reused for other texts.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from polyencoder.errors import CheckpointError, InputError, get_first_line
from polyencoder.index.token_rows import StoredTokens, TokenRows
from polyencoder.search.contexts import Array
from polyencoder.search.rows import Block, QuantizedRows, advise
from polyencoder.storage.files import write_array

VectorDtype = Literal["float32", "float16", "bfloat16", "int8"]

ON_DISK = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}
_BESIDE = ("int8", "bounds", "tokens", "offsets")  # what a file of vectors may have beside it
_MIN_PRECISION = 500  # float16 may change a vector by its length divided by this; by 1/2,048 where it is precise
_NAME = re.compile(r"vectors-(\d{12})(?:-[0-9a-f]{16})?\.npy")


def get_vectors_file(folder: Path, row: int, *, tag: str = "") -> Path:
    """The path of the file of vectors from this row."""
    return folder / f"vectors-{row:012d}{tag and '-'}{tag}.npy"


def list_side_files(path: Path) -> dict[str, Path]:
    """The paths of what a file of vectors may have beside it: rows in 8 bits, bounds, tokens and their offsets."""
    return {what: path.with_suffix(f".{what}.npy") for what in _BESIDE}


def parse_first_row(name: str) -> int:
    """The first row of a file of vectors, from its name. Raises CheckpointError for an invalid name."""
    if (match := _NAME.fullmatch(name)) is None:
        raise CheckpointError(f"{name}: not the name of a file of vectors: the index is damaged")
    return int(match[1])


def map_array(path: Path, dtype: np.dtype[Any], *, shape: tuple[int, ...]) -> Array:
    """Maps the array of a file; -1 in the shape is any length."""
    try:
        # "c": a private mapping, which torch can wrap; writes do not reach the file.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of arrays")
    except Exception as error:  # for a damaged header numpy raises anything
        raise CheckpointError(f"{path}: truncated, damaged or missing ({get_first_line(error)})") from None
    expected = tuple(n if size == -1 else size for n, size in zip(array.shape, shape, strict=False))
    if array.dtype != dtype or len(array.shape) != len(shape) or array.shape != expected:
        raise CheckpointError(
            f"{path}: has {array.dtype} {list(array.shape)}; the index has {dtype} {['rows', *shape[1:]]}"
        )
    return array


class MappedFile(NamedTuple):
    """A file of vectors, mapped into memory."""

    rows: Array
    """[n, dim], as stored."""
    quantized: QuantizedRows
    """The same in 8 bits: `rows` themselves, if they are stored so."""
    tokens: TokenRows | None = None

    def read_vectors(self, positions: slice | Array = slice(None)) -> Array:
        """The vectors of these rows, float32 [n, dim]."""
        return Block(0, self.rows, self.quantized).read_vectors(positions)


class Vectors:
    """Rows of vectors, read-only. Opening reads only the files' headers; pages are loaded on access."""

    def __init__(self, folder: Path, files: dict[str, MappedFile], *, dim: int, dtype: VectorDtype) -> None:
        self.folder = folder
        self.names = tuple(files)
        """The names of its files, in row order."""
        self.dim = dim
        self.dtype = dtype
        """The dtype of the stored vectors."""
        self._mapped = files
        self._files = list(files.values())
        # of each file, and the end
        self._starts = np.cumsum([0, *(len(file.rows) for file in self._files)])
        self._firsts = self._starts.tolist()

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        names: Iterable[str],
        *,
        dim: int,
        dtype: VectorDtype,
        tokens: StoredTokens | None = None,
        before: Vectors | None = None,
    ) -> Vectors:
        """Maps the files of an index folder, in any order, with the token vectors beside them, if any.

        Files that are mapped `before`, in an earlier state, are reused. CheckpointError for a file that is missing,
        truncated, or of another shape or dtype.
        """
        folder = Path(folder)
        mapped = {} if before is None else before._mapped
        files: dict[str, MappedFile] = {}
        row = 0
        for start, name in sorted((parse_first_row(name), name) for name in names):
            if start != row:
                raise CheckpointError(
                    f"{folder}: {get_vectors_file(folder, row).name} is missing: the index is damaged"
                )
            files[name] = mapped.get(name) or map_file(folder / name, dim=dim, dtype=dtype, tokens=tokens)
            row += len(files[name].rows)
        return cls(folder, files, dim=dim, dtype=dtype)

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    def find_file(self, start: int, rows: int) -> str | None:
        """The name of the file with exactly these rows; None without one."""
        i = bisect_right(self._firsts, start) - 1
        return self.names[i] if self._firsts[i : i + 2] == [start, start + rows] else None

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """Yields all rows in order, in blocks of at most `size`: views of the files, not copies."""
        for start, (rows, quantized, _) in zip(self._firsts, self._files, strict=False):
            for i in range(0, len(rows), size):
                yield Block(start + i, rows[i : i + size], quantized.select(slice(i, i + size)))

    def take(self, rows: Array) -> Array:
        """The vectors of these rows (int64, in any order), float32 [len(rows), dim]."""
        out = np.empty((len(rows), self.dim), dtype=np.float32)
        for file, position, inside in self._split_rows(rows):
            out[position] = file.read_vectors(inside)
        return out

    def read_stored(self, rows: Array) -> tuple[Array, QuantizedRows]:
        """The vectors of these rows as stored, [len(rows), dim], and in 8 bits."""
        shape = len(rows), self.dim
        quantized = QuantizedRows(np.empty(shape, np.int8), np.empty((len(rows), 3), np.float32))
        out = quantized.rows if self.dtype == "int8" else np.empty(shape, dtype=ON_DISK[self.dtype])
        for file, position, inside in self._split_rows(rows):
            advise(file.rows, "NORMAL")
            out[position] = file.rows[inside]
            quantized.rows[position], quantized.bounds[position] = file.quantized.select(inside)
        return out, quantized

    def read_token_rows(self, rows: Array) -> TokenRows | None:
        """The token vectors of these rows, at least one; None if the index has none."""
        parts = [(file.tokens, position, inside) for file, position, inside in self._split_rows(rows) if file.tokens]
        return TokenRows.copy_rows(parts) if parts else None

    def _split_rows(self, rows: Array) -> Iterator[tuple[MappedFile, Array, Array]]:
        """Each file with any of these rows, their positions among them, and the rows inside the file, ascending."""
        if not len(rows):
            return
        if rows.min() < 0 or rows.max() >= len(self):
            raise InputError(
                f"rows {rows.min()} to {rows.max()} were requested, but the index has rows 0 to {len(self) - 1}"
            )
        order = np.argsort(rows, kind="stable")
        ends = np.searchsorted(rows[order], self._starts)
        for i, file in enumerate(self._files):
            if len(position := order[ends[i] : ends[i + 1]]):
                yield file, position, rows[position] - self._starts[i]


def is_whole(path: Path, *, rows: int, dim: int, dtype: VectorDtype, tokens: StoredTokens | None = None) -> bool:
    """Whether a complete file of `rows` vectors exists, with its scales and tokens."""
    try:
        return len(map_file(path, dim=dim, dtype=dtype, tokens=tokens).rows) == rows
    except CheckpointError:
        return False


def quantize(vectors: Array, dtype: VectorDtype, *, texts: Sequence[str] | None = None) -> tuple[Array, QuantizedRows]:
    """Converts vectors [n, dim] for storage: to this dtype, and the result to 8 bits.

    A number changes by at most 1 part in 2,048 (float16; numbers below 6e-5 by up to 3e-8), 1 in 256 (bfloat16), or
    1/254 of its row's largest (int8).

    Raises:
        InputError: a number is not finite, or too large for float16, or all of a row are so small that float16 changes
            it by over 1/500 of its length; it names the text, one of `texts` [n].
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    stored = vectors
    with np.errstate(all="ignore"):  # to infinity, which is an error below
        if dtype == "float16":
            stored = vectors.astype(np.float16)
        elif dtype == "bfloat16":
            bits = vectors.view(np.uint32)
            half = (bits >> 16) & 1  # to the nearest, of two to the even one
            stored = ((bits + np.uint32(0x7FFF) + half) >> 16).astype(np.uint16)
    exact = Block(0, stored).read_vectors()  # as they will be read
    if not (np.isfinite(exact).all() and np.isfinite(vectors).all()):
        whole: Array = np.all(np.isfinite(vectors), axis=1)
        whose = _name_text(texts, int(np.argmin(np.all(np.isfinite(exact), axis=1) & whole)))
        if whole.all():
            raise InputError(
                f"vectors{whose} have numbers up to {np.abs(vectors).max():.3g}, more than {dtype} can hold; store "
                "them as bfloat16 or float32",
                argument="dtype",
            )
        raise InputError(f"the model gives vectors{whose} that are not finite (inf or nan): it cannot fill an index")
    if dtype == "float16":
        lost = _sum_squares(exact - vectors) * _MIN_PRECISION**2 > _sum_squares(vectors)
        if lost.any():
            row = int(np.argmax(lost))
            raise InputError(
                f"vectors{_name_text(texts, row)} have only numbers up to {np.abs(vectors[row]).max():.3g}, too small "
                "for float16; store them as bfloat16 or float32",
                argument="dtype",
            )
    quantized = QuantizedRows.from_vectors(exact)
    if dtype != "int8":
        return stored, quantized
    quantized.bounds[:, 2] = 0  # what is stored is the vector
    return quantized.rows, quantized


def _name_text(texts: Sequence[str] | None, row: int) -> str:
    return "" if texts is None else f" of the candidate {texts[row]!r:.60}"


def _sum_squares(rows: Array) -> Array:
    """float64 [n], in which squares do not vanish; without a copy of the rows."""
    sums: Array = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return sums


def write_vectors(
    folder: Path, row: int, stored: Array, quantized: QuantizedRows, tokens: TokenRows | None = None, *, tag: str = ""
) -> Path:
    """Writes the output of `quantize` as the rows from `row`; a kill leaves no partial file, an error no file."""
    path = get_vectors_file(folder, row, tag=tag)
    paths = list_side_files(path)
    arrays = {paths["bounds"]: quantized.bounds}
    if stored.dtype != np.int8:
        arrays[paths["int8"]] = quantized.rows
    if tokens is not None:
        arrays |= {paths["tokens"]: tokens.stored, paths["offsets"]: tokens.offsets}
    arrays[path] = stored  # the last: with it the rows are whole
    try:
        for file, array in arrays.items():
            write_array(file, array)
    except BaseException:
        for file in arrays:
            file.unlink(missing_ok=True)
        raise
    return path


def map_file(path: Path, *, dim: int, dtype: VectorDtype, tokens: StoredTokens | None = None) -> MappedFile:
    """Maps a file of vectors, and what is beside it: the rows in 8 bits with their bounds, and the token vectors."""
    paths = list_side_files(path)
    rows = map_array(path, np.dtype(ON_DISK[dtype]), shape=(-1, dim))
    in_8_bits = rows if dtype == "int8" else map_array(paths["int8"], np.dtype(np.int8), shape=(len(rows), dim))
    if dtype != "int8":
        advise(rows, "RANDOM")  # a search reads few of them: else each would bring in the pages around it
    quantized = QuantizedRows(in_8_bits, map_array(paths["bounds"], np.dtype(np.float32), shape=(len(rows), 3)))
    if tokens is None:
        return MappedFile(rows, quantized)
    offsets = map_array(paths["offsets"], np.dtype(np.int64), shape=(len(rows) + 1,))
    stored = map_array(paths["tokens"], np.dtype(tokens.dtype), shape=(-1, tokens.dim))
    if offsets[-1] != len(stored):
        raise CheckpointError(f"{path}: has {len(stored)} token vectors beside it, not {offsets[-1]}: it is damaged")
    return MappedFile(rows, quantized, TokenRows(stored, offsets))
