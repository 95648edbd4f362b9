"""A run as callbacks see it, without a model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from polyencoder.data.pool import CandidatePool
from polyencoder.training.objective import Outcome
from polyencoder.training.progress import Goal, Progress


@pytest.fixture
def run():
    """A run of 8 examples an update, of which `run.step(callback, loss=, hit=)` tells a callback the next.

    `processes=` as many do the same.
    """
    made = SimpleNamespace(goal=Goal(examples=1000), progress=Progress(), is_over=False)
    made.updates = SimpleNamespace(count=0, learning_rate=5e-5)

    def step(callback, *, loss: float = 1.0, hit: bool = True, candidates: int = 3, processes: int = 1) -> None:
        made.updates.count += 1
        made.progress.updates += 1
        made.progress.examples += 8 * processes
        scores = torch.zeros(8, candidates)
        scores[:, 0 if hit else 1] = 1.0
        pool = CandidatePool([str(n) for n in range(candidates)], labels=torch.zeros(8, dtype=torch.long))
        callback.after_step(made, Outcome(torch.tensor(loss), torch.full((8,), loss), scores, pool))

    made.step = step
    return made
