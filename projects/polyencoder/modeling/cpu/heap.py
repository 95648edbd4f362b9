"""Returns the C heap's free memory to the system: glibc keeps the holes that tensors of varying shapes leave."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def return_free_memory() -> None:
    """Returns free memory to the system, if the C library can (glibc)."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
