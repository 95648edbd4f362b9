"""The C heap: freed memory is given back to the system.

glibc keeps the holes between what is in use. Tensors of ever other shapes do not fit into them, so that a process which
works piece by piece grows with the pieces, by hundreds of megabytes, though little more is in use.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["return_free_memory"]


def return_free_memory() -> None:
    """Give memory that is not in use any more back to the system, where the C library can (glibc)."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
