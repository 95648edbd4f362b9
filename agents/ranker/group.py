"""A group of processes, on one host or several, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import parlai.utils.logging as logging
import torch
import torch.distributed as dist
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError
from polyencoder.learning.gather import gather_objects

__all__ = ["Place", "process_group"]

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HOW = "torchrun --nproc-per-node 2 -m parlai.agents.ranker.launch train_model -m polyencoder ..."

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, which may have more to read or to evaluate; a dead one ends the wait."""

OF_THE_HOST = {"datapath", "dict_file", "gpu", "loglevel", "model_file", "parlai_home"}
"""Flags that may be others on another host."""


@dataclass(frozen=True)
class Place:
    """Which of the processes this one is: of all, and of those on its host."""

    rank: int
    count: int
    local_rank: int
    local_count: int

    @classmethod
    def from_environment(cls) -> Place:
        """What torchrun says.

        Raises:
            ConfigError: it says nothing, so it did not start this process.
        """
        missing = [name for name in VARIABLES if not os.environ.get(name)]
        if missing:
            raise ConfigError(f"{missing[0]} is not set, as torchrun does: start with {HOW}")
        rank, count, local_rank, local_count = (int(os.environ[name]) for name in VARIABLES[:4])
        return cls(rank, count, local_rank, local_count)


@contextmanager
def process_group(opt: Opt, place: Place) -> Iterator[Opt]:
    """Join the others, over NCCL where each process has a GPU, else over gloo; gives the options for this process.

    A block that raises leaves the group as it is: the others find that out by themselves, and to take leave of them
    in order one would have to wait for them.

    Raises:
        ConfigError: more processes than GPUs, or processes that were started with different flags.
    """
    on_gpu = torch.cuda.is_available() and not opt["no_cuda"]
    if on_gpu and place.local_count > torch.cuda.device_count():
        raise ConfigError(
            f"{place.local_count} processes on this host, but {torch.cuda.device_count()} GPU(s): give torchrun "
            f"--nproc-per-node {torch.cuda.device_count()}, or --no-cuda true to train on CPUs"
        )
    gpu = place.local_rank if on_gpu else -1
    override = {**opt.get("override", {}), "gpu": gpu}  # not the one that a model file remembers
    if on_gpu:
        torch.cuda.set_device(gpu)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    _check_flags(opt)
    logging.info(f"{place.count} processes, {dist.get_backend()}")
    yield Opt({**opt, "gpu": gpu, "rank": place.rank, "override": override})
    dist.barrier()  # the first may still be writing
    dist.destroy_process_group()


def _check_flags(opt: Opt) -> None:
    """Raise ConfigError, in every process, unless all were started with the same flags."""
    given = {name: value for name, value in opt.get("override", {}).items() if name not in OF_THE_HOST}
    first, *others = gather_objects(given)
    for rank, flags in enumerate(others, 1):
        for name in sorted(first.keys() | flags.keys()):
            if first.get(name) != flags.get(name):
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {first.get(name)!r} in process 0 and {flags.get(name)!r} in "
                    f"process {rank}: start all hosts with the same command"
                )
