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
    """A run of 8 examples an update; `run.step(callback, loss=, hit=)` reports the next update to a callback.

    With `processes=`, as many processes make the update.
    """
    run_state = SimpleNamespace(goal=Goal(examples=1000), progress=Progress(), is_over=False)
    run_state.updates = SimpleNamespace(count=0, learning_rate=5e-5)

    def step(callback, *, loss: float = 1.0, hit: bool = True, candidates: int = 3, processes: int = 1) -> None:
        run_state.updates.count += 1
        run_state.progress.updates += 1
        run_state.progress.examples += 8 * processes
        scores = torch.zeros(8, candidates)
        scores[:, 0 if hit else 1] = 1.0
        pool = CandidatePool([str(n) for n in range(candidates)], labels=torch.zeros(8, dtype=torch.long))
        callback.after_step(run_state, Outcome(torch.tensor(loss), torch.full((8,), loss), scores, pool))

    run_state.step = step
    return run_state
