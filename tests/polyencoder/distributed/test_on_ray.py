"""A real Ray on this machine: two actors write what one process writes."""

from __future__ import annotations

import pytest

from polyencoder.distributed.blocks import Block, Done
from polyencoder.distributed.on_ray import RayEngine


@pytest.mark.slow
def test_two_actors_write_what_one_process_writes(check_engine):
    ray = pytest.importorskip("ray", reason="no Ray: pip install 'ray[data]'")
    check_engine(RayEngine(workers=2))
    assert not ray.is_initialized(), "the session that it started has ended"
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        block, done = Block("file", 0, 1, "part"), Done(1, "")
        assert [*RayEngine(workers=1)([block], lambda _: done)] == [done]
        assert ray.is_initialized(), "one that was there stays"
    finally:
        ray.shutdown()
