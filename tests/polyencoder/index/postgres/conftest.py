"""A table of its own for each test, in a real PostgreSQL."""

from __future__ import annotations

import pytest

from tests.polyencoder.index.postgres.tables import names


@pytest.fixture
def where(postgres) -> str:
    return f"{postgres.address}#{next(names)}"
