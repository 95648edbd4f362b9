"""Reading what `torch.save` wrote, without running code that it names.

`torch.load` with `weights_only=True` refuses every class that it was not told of. What is safe and does occur gets a
stand-in of the same name, which makes plain data of what the file holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

__all__ = ["Allowed", "allowing", "load_states", "plain_numbers"]

Allowed = Callable[..., Any] | tuple[Callable[..., Any], str]

_KINDS = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}


class _Kind:
    """numpy's `dtype` of a single number: its code and the order of its bytes."""

    order = "<"

    def __init__(self, code: str, *_: Any) -> None:
        if not isinstance(code, str) or code not in _KINDS:
            raise UnpicklingError(f"a numpy value of kind {code!r} is no number")
        self.code = code

    def __setstate__(self, state: Any) -> None:
        big = isinstance(state, tuple) and len(state) > 1 and state[1] == ">"
        self.order = ">" if big else "<"


def _number(kind: _Kind, data: bytes) -> float:
    """numpy's `scalar`: the number that these bytes are, as Python has it."""
    if not isinstance(kind, _Kind) or not isinstance(data, bytes):
        raise UnpicklingError("a numpy number is damaged")
    dtype = np.dtype(kind.order + kind.code)
    if len(data) != dtype.itemsize:
        raise UnpicklingError(f"{len(data)} bytes are not one number of kind {kind.code}")
    number: float = np.frombuffer(data, dtype)[0].item()
    return number


def _numpy_numbers() -> list[Allowed]:
    """The stand-ins, under the names that old and new versions of numpy write. torch goes by a class's own name."""
    made: list[Allowed] = [type("dtype", (_Kind,), {"__module__": "numpy"})]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):

        def scalar(kind: _Kind, data: bytes) -> float:
            return _number(kind, data)

        scalar.__module__, scalar.__qualname__ = module, "scalar"
        made.append(scalar)
    return made


_NUMBERS = _numpy_numbers()


def load_states(path: str | os.PathLike[str], *, mmap: bool) -> Any:
    """What `torch.save` wrote: tensors, on the CPU, and plain data; single numbers of numpy become Python's.

    Raises what torch raises, UnpicklingError above all, if it is damaged or holds anything else.
    """

    def load() -> Any:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)

    try:
        return load()
    except UnpicklingError:  # some schedules of ParlAI's leave numpy's numbers in its checkpoints
        with allowing(_NUMBERS):
            return load()


@contextmanager
def allowing(classes: Sequence[Allowed]) -> Iterator[None]:
    """torch's `safe_globals`, which its version 2.4 has not."""
    before = get_safe_globals()
    add_safe_globals(list(classes))
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def plain_numbers(states: Any) -> Any:
    """Nested dictionaries, lists and tuples with Python's numbers in the place of numpy's. All else stays itself."""
    if isinstance(states, np.generic):
        return states.item()
    if type(states) is dict:
        return {key: plain_numbers(value) for key, value in states.items()}
    if type(states) in (list, tuple):
        return type(states)(plain_numbers(value) for value in states)
    return states
