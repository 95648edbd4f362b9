"""The log of a pre-training: it counts the tokens of all processes."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from polyencoder.data.pool import CandidatePool
from polyencoder.pretraining.callbacks import PretrainingLog
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.text.tokens import TokenBatch
from polyencoder.training.distributed import Processes
from polyencoder.training.progress import Progress


def test_the_speed_is_that_of_all_processes_together():
    log = PretrainingLog()
    log.on_start(SimpleNamespace())
    schedule = SimpleNamespace(expected_updates=None, warmup_updates=0)
    run = SimpleNamespace(
        processes=Processes(rank=0, count=4),
        progress=Progress(),
        updates=SimpleNamespace(schedule=schedule),
        model=None,
    )
    ids = torch.ones(2, 50, dtype=torch.long)
    batch = PairBatch(TokenBatch(ids, ids.bool()), CandidatePool([]))
    for _ in range(3):
        log.before_step(run, batch)
    assert log.format_speed(2.0) == "600 tokens/s"  # 300 tokens of this process
    assert log.tokens == 300
