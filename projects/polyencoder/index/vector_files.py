"""The files of an index's vectors (`polyencoder.index.vectors`): their names, and numpy arrays mapped into memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyencoder.errors import CheckpointError, first_line

Array = np.ndarray[Any, Any]

VectorDtype = Literal["float32", "float16", "bfloat16", "int8"]

ON_DISK = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.int8}
_BESIDE = ("int8", "bounds", "tokens", "offsets")  # what a file of vectors may have beside it
_NAME = re.compile(r"vectors-(\d{12})(?:-[0-9a-f]{16})?\.npy")


def vectors_file(folder: Path, row: int, *, tag: str = "") -> Path:
    """The path of the file of vectors from this row."""
    return folder / f"vectors-{row:012d}{tag and '-'}{tag}.npy"


def beside(path: Path) -> dict[str, Path]:
    """The paths of what a file of vectors may have beside it: rows in 8 bits, bounds, tokens and their offsets."""
    return {what: path.with_suffix(f".{what}.npy") for what in _BESIDE}


def first_row(name: str) -> int:
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
        raise CheckpointError(f"{path}: truncated, damaged or missing ({first_line(error)})") from None
    wanted = tuple(n if want == -1 else want for n, want in zip(array.shape, shape, strict=False))
    if array.dtype != dtype or len(array.shape) != len(shape) or array.shape != wanted:
        raise CheckpointError(
            f"{path}: has {array.dtype} {list(array.shape)}; the index has {dtype} {['rows', *shape[1:]]}"
        )
    return array
