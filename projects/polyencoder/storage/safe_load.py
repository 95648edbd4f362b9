"""Loads weights without running code from their files: safetensors, and what `torch.save` wrote.

The latter are read by `torch.load` with `weights_only=True`, with numpy scalars added to its allowed classes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.serialization import safe_globals

from polyencoder.errors import CheckpointError, get_first_line

Allowed = Callable[..., Any] | tuple[Callable[..., Any], str]

_SCALAR: Any = np.float64(0).__reduce__()[0]  # what unpickles a single number
_KINDS = ("b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8")
_NUMBERS: list[Allowed] = [
    (_SCALAR, "numpy.core.multiarray.scalar"),  # as numpy 1 writes it
    (_SCALAR, "numpy._core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(kind)) for kind in _KINDS),  # and no other: texts, dates, objects
]
_lock = threading.RLock()  # what torch allows, it allows to all threads


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. CheckpointError if it is missing or damaged."""
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        what = "missing" if isinstance(error, FileNotFoundError) else "damaged or not a safetensors file"
        raise CheckpointError(f"{os.fspath(path)}: {what} ({get_first_line(error)})") from None


def load_states(path: str | os.PathLike[str], *, mmap: bool) -> Any:
    """Loads a `torch.save` file onto the CPU: tensors and plain data, with numpy's numbers as Python's.

    Raises what torch raises, UnpicklingError above all, if it is damaged or holds anything else.
    """

    def load() -> Any:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)

    with _lock:  # else a class that another thread allows for a moment may be gone between torch's check and its use
        try:
            return load()
        except UnpicklingError:  # some schedules of ParlAI's leave numpy's numbers in its checkpoints
            with allowing(_NUMBERS):
                return to_plain_numbers(load())


def explain_not_loaded(error: Exception) -> str:
    """The reason of torch for not loading a file, without its advice to run what is in it."""
    if isinstance(error, KeyError):  # of a byte that is no instruction of a pickle
        return "no pickle"
    _, _, reason = str(error).partition("WeightsUnpickler error:")
    return get_first_line(UnpicklingError(reason)) if reason.strip() else get_first_line(error)


@contextmanager
def allowing(classes: Sequence[Allowed]) -> Iterator[None]:
    """torch's `safe_globals`, for one thread at a time, since it is process-wide."""
    with _lock, safe_globals(list(classes)):
        yield


def to_plain_numbers(states: Any) -> Any:
    """Converts numpy scalars in nested containers to Python numbers."""
    if isinstance(states, np.generic):
        return states.item()
    if type(states) is dict:
        return {key: to_plain_numbers(value) for key, value in states.items()}
    if type(states) in (list, tuple):
        return type(states)(to_plain_numbers(value) for value in states)
    return states
