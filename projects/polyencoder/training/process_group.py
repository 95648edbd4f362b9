"""Process group of distributed training under torchrun, on one host or several."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from polyencoder.errors import ConfigError
from polyencoder.training.distributed import gather_objects

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

JOINING = timedelta(minutes=30)  # the first process may have a vocabulary to train
TIMEOUT = 1800.0  # seconds after joining: other processes may encode candidates or write a model


def is_grouped() -> bool:
    """Whether torchrun started this process."""
    return all(os.environ.get(name) for name in VARIABLES)


@dataclass(frozen=True)
class Ranks:
    """Rank and world size, global and on this host."""

    rank: int
    count: int
    local_rank: int
    local_count: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """Reads torchrun's environment variables. ConfigError: torchrun did not start this process."""
        missing = [name for name in VARIABLES if not os.environ.get(name)]
        if missing:
            raise ConfigError(f"{missing[0]} is not set: start this process with torchrun")
        rank, count, local_rank, local_count = (int(os.environ[name]) for name in VARIABLES[:4])
        return cls(rank, count, local_rank, local_count)


@contextmanager
def process_group(
    ranks: Ranks, settings: Mapping[str, Any], *, timeout: float = TIMEOUT, on_cpu: bool = False
) -> Iterator[torch.device]:
    """Joins the process group, over NCCL if each process has a GPU, else gloo; yields this process's device.

    If the block raises, the group is not destroyed, since that would wait for the other processes. settings: of the
    run, equal in all processes. timeout: seconds to wait for others.

    Raises:
        ConfigError: invalid timeout, more processes than GPUs, an unreachable host, or different settings.
    """
    if not 0 < timeout < float("inf"):
        raise ConfigError(f"timeout is {timeout}; it must be seconds, above 0", argument="timeout")
    on_gpu = torch.cuda.is_available() and not on_cpu
    if on_gpu and ranks.local_count > torch.cuda.device_count():
        raise ConfigError(
            f"{ranks.local_count} processes on this host, but {torch.cuda.device_count()} GPU(s): start one process "
            "per GPU, or train on CPUs",
            argument="on_cpu",
        )
    if on_gpu:
        torch.cuda.set_device(ranks.local_rank)
    backend, waiting = "nccl" if on_gpu else "gloo", timedelta(seconds=timeout)
    store = _meet(ranks, backend)
    store.set_timeout(waiting)
    dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.count, timeout=waiting)
    _check_settings(settings)
    yield torch.device("cuda", ranks.local_rank) if on_gpu else torch.device("cpu")
    dist.barrier()  # the first may still be writing
    dist.destroy_process_group()


def _meet(ranks: Ranks, backend: str) -> Store:
    """Waits for all processes; returns the store with their hosts. ConfigError: gloo would announce a loopback."""
    store: Store
    store, _, _ = next(rendezvous("env://", timeout=JOINING))
    host = {"name": socket.gethostname(), "address": _find_address()}
    store.set(f"host of {ranks.rank}", json.dumps(host))
    hosts = [json.loads(store.get(f"host of {rank}")) for rank in range(ranks.count)]
    store.set(f"read by {ranks.rank}", "")
    if ranks.rank == 0:  # this process owns the store: on an error below, others must have read it first
        store.wait([f"read by {rank}" for rank in range(ranks.count)])
    if backend == "gloo" and len({host["name"] for host in hosts}) > 1:
        for host in hosts:
            if ip_address(host["address"]).is_loopback:
                raise ConfigError(
                    f"{host['name']} is {host['address']} to itself, where no other host can reach it: set "
                    "GLOO_SOCKET_IFNAME there to its network interface, as in GLOO_SOCKET_IFNAME=eth0"
                )
    return store


def _find_address() -> str:
    """The address gloo announces for this host: that of its name, unless a network interface is set."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return "0.0.0.0"
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return "127.0.0.1"


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError, in every process, if settings differ between processes."""
    first, *others = gather_objects(dict(settings))
    for rank, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys()):
            if first.get(name) != other.get(name):
                raise ConfigError(
                    f"{name} is {first.get(name)!r} in process 0 and {other.get(name)!r} in process {rank}: start all "
                    "hosts with the same command",
                    argument=name,
                )
