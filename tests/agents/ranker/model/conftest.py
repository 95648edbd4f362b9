"""Shared fixtures of the tests of learning: a full disk, the losses of each step."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest

from polyencoder.training.objective import RankingObjective


@pytest.fixture
def largest_file() -> Iterator[Callable[[int | None], None]]:
    """(bytes) -> no file may grow beyond this, as if the disk were full; None: any may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def steps(monkeypatch):
    """The results of each training step: [(scores, pool, losses)]."""
    calls = []
    step = RankingObjective.__call__

    def record(self, batch):
        outcome = step(self, batch)
        calls.append((outcome.scores, outcome.pool, outcome.losses))
        return outcome

    monkeypatch.setattr(RankingObjective, "__call__", record)
    return calls
