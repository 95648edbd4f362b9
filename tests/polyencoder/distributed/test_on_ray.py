"""A real Ray on this machine: two actors write what one process writes."""

from __future__ import annotations

import pytest

from polyencoder.distributed.on_ray import RayEngine


@pytest.mark.slow
def test_two_actors_write_what_one_process_writes(check_engine):
    ray = pytest.importorskip("ray", reason="no Ray: pip install 'ray[data]'")
    try:
        check_engine(RayEngine(workers=2))
    finally:
        ray.shutdown()
