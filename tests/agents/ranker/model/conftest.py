"""What the tests of learning share: a disk that is full."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def largest_file() -> Iterator[Callable[[int | None], None]]:
    """(bytes) -> no file may grow beyond this, as if the disk were full; None: any may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
