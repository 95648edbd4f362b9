"""Tests of many parameters: only a nightly run needs most of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["mostly_long"]


def mostly_long(
    names: str | Sequence[str], values: Iterable[Any], *, quick: int, **others: Any
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` whose first `quick` values stand for the others in `make test`: those are long."""
    parts = [(value,) if isinstance(names, str) else value for value in values]
    long = [pytest.param(*part, marks=pytest.mark.long) for part in parts[quick:]]
    return pytest.mark.parametrize(names, [*(pytest.param(*part) for part in parts[:quick]), *long], **others)
