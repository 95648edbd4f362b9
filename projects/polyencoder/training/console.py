"""Shows the library's log on standard error, unless the program configures logging itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged(*, show: bool) -> Iterator[None]:
    """Shows the library's log on standard error."""
    log, handler = logging.getLogger("polyencoder"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO if show else logging.ERROR)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def logged_by_default(*, show: bool) -> Iterator[None]:
    """`logged`, unless the program configures logging itself."""
    if logging.getLogger("polyencoder").hasHandlers():
        yield
    else:
        with logged(show=show):
            yield
