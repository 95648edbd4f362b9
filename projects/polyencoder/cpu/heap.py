"""What becomes of memory that is free: kept for the next tensors, or given back to the system.

glibc fetches blocks of more than some megabytes from the system, which fills them with zeros, page by page, and gives
them back when they are free. A training step, whose large tensors come and go, spends a seventh of its time on that.
What is smaller it keeps, with holes between what is in use. Tensors of ever other shapes do not fit into them, so that
a process which works piece by piece grows with the pieces, by hundreds of megabytes, though little more is in use.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["keep_free_memory", "return_free_memory"]

NO_C_LIBRARY_OF_THIS_KIND = (AttributeError, OSError, TypeError)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGEST = 2**30  # bytes of a block that is kept


def keep_free_memory() -> None:
    """From now on keep what becomes free for what comes next, where the C library can (glibc)."""
    with suppress(*NO_C_LIBRARY_OF_THIS_KIND):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_free_memory() -> None:
    """Give memory that is not in use any more back to the system, where the C library can (glibc)."""
    with suppress(*NO_C_LIBRARY_OF_THIS_KIND):
        ctypes.CDLL(None).malloc_trim(0)
