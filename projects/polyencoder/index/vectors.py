"""The vectors of an index on disk: numpy files, mapped into memory, in the order of their rows.

`vectors-000000065536-9f86d081884c7d65.npy` holds the rows from 65,536 on, [n, dim], as float32, float16, int8, or as
uint16 with the bits of bfloat16, a type that numpy does not have. The vector of an int8 row is the row times its scale,
which is in `vectors-000000065536-9f86d081884c7d65.scales.npy`, [n]; token vectors are in two more files, see
`token_rows`. The name ends with a tag: the id of the build that wrote the file, or a digest of that id and the texts.
So a file name is never reused for other texts.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from polyencoder.checks import check_choice
from polyencoder.errors import CheckpointError, InputError
from polyencoder.index.stored_tokens import StoredTokens
from polyencoder.index.token_rows import TokenRows
from polyencoder.index.vector_files import ON_DISK, VectorDtype, beside, first_row, map_array, vectors_file
from polyencoder.scoring.rows import Chunk
from polyencoder.storage.files import write_array

_TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}


class MappedFile(NamedTuple):
    """A file of vectors, mapped into memory."""

    rows: Tensor
    """[n, dim], as stored."""
    scales: Tensor | None
    """float32 [n], of int8 rows."""
    tokens: TokenRows | None = None


class Vectors:
    """Rows of vectors, read-only. Opening reads only the files' headers; pages are loaded on access."""

    def __init__(self, folder: Path, files: dict[str, MappedFile], *, dim: int, dtype: VectorDtype) -> None:
        self.folder = folder
        self.names = tuple(files)
        """The names of its files, in row order."""
        self.dim = dim
        self.dtype = _TORCH[dtype]
        """The dtype of the stored vectors."""
        self.device = torch.device("cpu")
        self._mapped = files
        self._files = list(files.values())
        # of each file, and the end
        self._starts = torch.tensor([0, *(len(file.rows) for file in self._files)]).cumsum(0)
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
        """Maps the files of an index folder.

        Args:
            names: the files, in any order.
            tokens: the token vectors beside them, if any.
            before: an earlier state of the index; files mapped there are reused.

        Raises:
            CheckpointError: a file is missing, truncated, or of another shape or dtype.
        """
        folder = Path(folder)
        check_choice("dtype", dtype, get_args(VectorDtype))
        mapped = {} if before is None else before._mapped
        files: dict[str, MappedFile] = {}
        row = 0
        for start, name in sorted((first_row(name), name) for name in names):
            if start != row:
                raise CheckpointError(f"{folder}: {vectors_file(folder, row).name} is missing: the index is damaged")
            files[name] = mapped.get(name) or map_file(folder / name, dim=dim, dtype=dtype, tokens=tokens)
            row += len(files[name].rows)
        return cls(folder, files, dim=dim, dtype=dtype)

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    def file_of(self, start: int, rows: int) -> str | None:
        """The name of the file with exactly these rows; None without one."""
        i = bisect_right(self._firsts, start) - 1
        return self.names[i] if self._firsts[i : i + 2] == [start, start + rows] else None

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yields all rows in order, in chunks of at most `size`: views of the files, not copies."""
        if size < 1:
            raise InputError(f"a chunk must have at least 1 row, not {size}")
        for start, (rows, scales, _) in zip(self._firsts, self._files, strict=False):
            for i in range(0, len(rows), size):
                yield Chunk(start + i, rows[i : i + size], None if scales is None else scales[i : i + size])

    def take(self, rows: Tensor) -> Tensor:
        """The vectors of these rows (int64, in any order), float32 [len(rows), dim]."""
        stored, scales = self.stored(rows)
        return stored.float() if scales is None else stored.float() * scales.unsqueeze(1)

    def stored(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vectors of these rows as stored, [len(rows), dim], with their scales if they are int8."""
        out = torch.empty(len(rows), self.dim, dtype=self.dtype)
        scales = torch.empty(len(rows)) if self.dtype == torch.int8 else None
        for file, place, inside in self._parts(rows):
            out[place] = file.rows[inside]
            if scales is not None and file.scales is not None:
                scales[place] = file.scales[inside]
        return out, scales

    def token_rows(self, rows: Tensor) -> TokenRows | None:
        """The token vectors of these rows, at least one; None if the index has none."""
        parts = [(file.tokens, place, inside) for file, place, inside in self._parts(rows) if file.tokens]
        return TokenRows.taken(parts) if parts else None

    def _parts(self, rows: Tensor) -> Iterator[tuple[MappedFile, Tensor, Tensor]]:
        """Each file with some of these rows, their places among them, and the rows inside the file, forwards."""
        rows = rows.cpu()
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise InputError(
                f"rows {rows.min()} to {rows.max()} were asked for, but the index has rows 0 to {len(self) - 1}"
            )
        file_of = torch.searchsorted(self._starts, rows, right=True) - 1
        order = rows.argsort()
        places = order.split(torch.bincount(file_of, minlength=len(self._files)).tolist()) if len(rows) else ()
        for i, place in enumerate(places):
            if len(place):
                yield self._files[i], place, rows[place] - self._starts[i]


def is_whole(path: Path, *, rows: int, dim: int, dtype: VectorDtype, tokens: StoredTokens | None = None) -> bool:
    """Whether a complete file of `rows` vectors exists, with its scales and tokens."""
    try:
        return len(map_file(path, dim=dim, dtype=dtype, tokens=tokens).rows) == rows
    except CheckpointError:
        return False


def quantize(
    vectors: Tensor, dtype: VectorDtype, *, texts: Sequence[str] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Converts vectors [n, dim] for storage, on the CPU, with float32 scales [n] for int8.

    A number changes by at most 1 part in 2,048 (float16), 1 in 256 (bfloat16), or 1/254 of its row's largest (int8).

    Raises:
        InputError: a number is not finite, or too large for float16; it names the text, one of `texts` [n].
    """
    vectors = vectors.float().cpu()
    scales = None
    if dtype == "int8":
        scales = (vectors.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        stored = (vectors / scales.unsqueeze(1)).round_()
    else:
        stored = vectors.to(_TORCH[dtype])
    if not stored.isfinite().all():
        place = int(stored.isfinite().all(1).logical_not().nonzero()[0])
        whose = "" if texts is None else f" of the candidate {texts[place]!r:.60}"
        if vectors.isfinite().all():
            raise InputError(
                f"vectors{whose} have numbers up to {vectors.abs().max():.3g}, more than {dtype} can hold; store "
                "them as bfloat16 or float32",
                argument="dtype",
            )
        raise InputError(f"the model gives vectors{whose} that are not finite (inf or nan): it cannot fill an index")
    return stored.to(_TORCH[dtype]), scales


def write_vectors(
    folder: Path,
    row: int,
    stored: Tensor,
    scales: Tensor | None = None,
    tokens: TokenRows | None = None,
    *,
    tag: str = "",
) -> Path:
    """Writes the output of `quantize` as the rows from `row`; returns the path. A kill leaves no partial file."""
    path = vectors_file(folder, row, tag=tag)
    paths = beside(path)
    if scales is not None:
        write_array(paths["scales"], scales.numpy())
    if tokens is not None:
        write_array(paths["tokens"], tokens.stored.numpy())
        write_array(paths["offsets"], tokens.offsets.numpy())
    bits = stored.view(torch.int16).numpy().view(np.uint16) if stored.dtype == torch.bfloat16 else stored.numpy()
    write_array(path, bits)
    return path


def map_file(path: Path, *, dim: int, dtype: VectorDtype, tokens: StoredTokens | None = None) -> MappedFile:
    """Maps a file of vectors, and its scales for int8, and its token vectors."""
    paths = beside(path)
    rows = _mapped(path, np.dtype(ON_DISK[dtype]), shape=(-1, dim)).view(_TORCH[dtype])
    scales = _mapped(paths["scales"], np.dtype(np.float32), shape=(len(rows),)) if dtype == "int8" else None
    if tokens is None:
        return MappedFile(rows, scales)
    offsets = _mapped(paths["offsets"], np.dtype(np.int64), shape=(len(rows) + 1,))
    stored = _mapped(paths["tokens"], np.dtype(tokens.dtype), shape=(-1, tokens.dim))
    if offsets[-1] != len(stored):
        raise CheckpointError(f"{path}: has {len(stored)} token vectors beside it, not {offsets[-1]}: it is damaged")
    return MappedFile(rows, scales, TokenRows(stored, offsets))


def _mapped(path: Path, dtype: np.dtype[Any], *, shape: tuple[int, ...]) -> Tensor:
    """Like `map_array`, as a tensor."""
    array = map_array(path, dtype, shape=shape)
    # numpy's uint16 only holds the bits; torch supports little else with that type.
    return torch.from_numpy(array.view(np.int16) if dtype == np.uint16 else array)
