"""Encodes blocks on Ray: Ray Data maps them over actors, each of which loads the model once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from polyencoder.distributed.blocks import Block, Done, Work
from polyencoder.packages import require


class RayEngine:
    """An engine for `encode_blocks`: on the cluster of RAY_ADDRESS, else in processes on this machine.

    A session that it starts ends with the work.

    Args:
        workers: actors.
        gpus: of each.
    """

    def __init__(self, *, workers: int, gpus: int = 0) -> None:
        self._workers, self._gpus = workers, gpus

    def __call__(self, blocks: Sequence[Block], work: Work) -> Iterator[Done]:
        ray, data = require("ray", extra="ray"), require("ray.data", extra="ray")
        if starts := not ray.is_initialized():
            here: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": self._workers + 1}
            ray.init(log_to_driver=False, include_dashboard=False, **here)
        try:
            data.DataContext.get_current().enable_progress_bars = False
            rows = data.from_items([block._asdict() for block in blocks], override_num_blocks=len(blocks))
            done = rows.map(_Actor, fn_constructor_args=(work,), concurrency=self._workers, num_gpus=self._gpus or None)
            for row in done.iter_rows():
                yield Done(**row)
        finally:
            if starts:
                ray.shutdown()


class _Actor:
    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return self._work(Block(**row))._asdict()
