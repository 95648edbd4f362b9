"""Ray: tables are encoded by actors, on this machine or on those of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from polyencoder.checks import checked_count
from polyencoder.errors import PolyencoderError, first_line
from polyencoder.packages import require

__all__ = ["map_with_ray"]

T = TypeVar("T")


def map_with_ray(
    function: Callable[[Any], Any], tables: Iterable[tuple[T, Any]], *, workers: int = 1
) -> Iterator[tuple[T, Any]]:
    """A `Mapper`: the tables in order, each encoded by one of some actors, which have the model in memory.

    Two tables for each actor are on their way at a time. Ray is started on this machine, unless it is running or its
    environment variable RAY_ADDRESS names a cluster. An actor has a CPU and, where the cluster has GPUs, one of those.

    Raises:
        PolyencoderError: an actor has died; its error, if encoding raised one of ours.
    """
    ray = require("ray", extra="ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    actor = ray.remote(num_cpus=1, num_gpus=gpus)(_Actor)
    actors = [actor.remote(function) for _ in range(checked_count("workers", workers))]
    waiting: deque[tuple[T, Any]] = deque()
    try:
        for number, (key, table) in enumerate(tables):
            if len(waiting) >= 2 * workers:
                yield _got(ray, *waiting.popleft())
            waiting.append((key, actors[number % workers].call.remote(table)))
        while waiting:
            yield _got(ray, *waiting.popleft())
    finally:
        for one in actors:
            ray.kill(one)


class _Actor:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def call(self, table: Any) -> Any:
        return self._function(table)


def _got(ray: Any, key: T, reference: Any) -> tuple[T, Any]:
    try:
        return key, ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PolyencoderError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise PolyencoderError(
            f"an actor of Ray has died ({first_line(error)}): do the same again to resume, with fewer workers if it "
            "happens again",
            argument="workers",
        ) from None
