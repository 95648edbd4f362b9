"""A group of processes, on one host or several, as torchrun starts them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address

import parlai.utils.logging as logging
import torch
import torch.distributed as dist
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from torch.distributed.rendezvous import rendezvous

from polyencoder.errors import ConfigError
from polyencoder.training.distributed import gather_objects

__all__ = ["Place", "add_group_arguments", "process_group"]

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HOW = "torchrun --nproc-per-node 2 -m parlai.agents.ranker.launch train_model -m polyencoder ..."

JOINING = timedelta(minutes=30)  # the first may have a vocabulary to learn
TIMEOUT = 1800.0  # seconds, from then on: others may have candidates to encode, a model to write

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


def add_group_arguments(parser: ParlaiParser) -> None:
    """The launcher's own flags."""
    parser.add_argument_group("Several processes").add_argument(
        "--group-timeout",
        type=float,
        default=TIMEOUT,
        help="Seconds that a process of the group waits for another one, which may be busy or out of reach, before it "
        "ends with an error.",
    )


@contextmanager
def process_group(opt: Opt, place: Place) -> Iterator[Opt]:
    """Join the others, over NCCL where each process has a GPU, else over gloo; gives the options for this process.

    A block that raises leaves the group as it is: the others find that out by themselves, and to take leave of them
    in order one would have to wait for them.

    Raises:
        ConfigError: no time to wait, more processes than GPUs, a host that others cannot reach, or processes that were
            started with different flags.
    """
    timeout = opt["group_timeout"]
    if not 0 < timeout < float("inf"):
        raise ConfigError(f"--group-timeout {timeout}: must be seconds, above 0")
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
    backend, waiting = "nccl" if on_gpu else "gloo", timedelta(seconds=timeout)
    store = _meet(place, backend)
    store.set_timeout(waiting)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.count, timeout=waiting)
    _check_flags(opt)
    logging.info(f"{place.count} processes, {dist.get_backend()}")
    yield Opt({**opt, "gpu": gpu, "rank": place.rank, "override": override})
    dist.barrier()  # the first may still be writing
    dist.destroy_process_group()


def _meet(place: Place, backend: str) -> dist.Store:
    """Wait until all processes are there; gives the store in which each has said on which host it is.

    Raises:
        ConfigError: over gloo, one of several hosts would tell the others an address that is theirs as well.
    """
    store: dist.Store
    store, _, _ = next(rendezvous("env://", timeout=JOINING))
    host = {"name": socket.gethostname(), "address": _own_address()}
    store.set(f"host of {place.rank}", json.dumps(host))
    hosts = [json.loads(store.get(f"host of {rank}")) for rank in range(place.count)]
    if backend == "gloo" and len({host["name"] for host in hosts}) > 1:
        for host in hosts:
            if ip_address(host["address"]).is_loopback:
                raise ConfigError(
                    f"{host['name']} is {host['address']} to itself, where no other host can reach it: set "
                    "GLOO_SOCKET_IFNAME there to its network interface, as in GLOO_SOCKET_IFNAME=eth0"
                )
    return store


def _own_address() -> str:
    """Where gloo would say that this host is: at the address of its name, unless a network interface is given."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return "0.0.0.0"
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return "127.0.0.1"


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
