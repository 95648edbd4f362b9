"""Training under torchrun, in one go or as on several hosts, and what happens when a host is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from parlai.scripts.train_model import TrainModel

from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

Torchrun = subprocess.Popen[bytes]


@pytest.fixture
def torchrun(forked_commands) -> Iterator[Callable[..., Torchrun]]:
    """(its flags, the launcher's arguments, working folder) -> torchrun; nothing of it outlives the test."""
    started = []

    def run(flags: list[str], command: list[str], folder: Path) -> Torchrun:
        folder.mkdir(exist_ok=True)
        runner = [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "parlai.agents.ranker.launch"]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen([*runner, *command], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        started.append(process)
        return process

    yield run
    for process in started:
        power_off(process)


@pytest.fixture
def two_hosts(torchrun, arguments, free_port, pairs, tmp_path) -> Iterator[Callable[..., list[Torchrun]]]:
    """Options -> two torchruns as on two hosts, each with a folder and data of its own: host0, host1 of `tmp_path`."""

    def run(options: dict[str, Any]) -> list[Torchrun]:
        processes = []
        for rank in range(2):
            folder = tmp_path / f"host{rank}"
            shutil.copytree(pairs["selection_folder"], folder / "pairs")
            command = ["train_model", *arguments({**options, "selection_folder": "pairs", "datapath": folder})]
            rendezvous = ["--master-addr", "localhost", "--master-port", port, "--nproc-per-node", "1"]
            processes.append(torchrun(["--nnodes", "2", "--node-rank", str(rank), *rendezvous], command, folder))
        return processes

    with free_port() as port:
        yield run


@pytest.mark.long
def test_two_hosts_have_the_curve_of_one(options, two_hosts, losses, tmp_path):
    alone, paired = tmp_path / "one", tmp_path / "two"
    TrainModel.main(**options, batchsize=8, model_file=str(alone), loglevel="error")
    hosts = two_hosts({**options, "batchsize": 4, "model_file": paired})
    for rank, host in enumerate(hosts):
        assert host.wait(timeout=300) == 0, output(tmp_path / f"host{rank}")
    assert losses(paired) == pytest.approx(losses(alone), rel=1e-3)
    assert "2 processes, gloo" in output(tmp_path / "host0")
    assert {path.name for path in (tmp_path / "host1").iterdir()} == {"output", "pairs"}, "the first one writes"


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds torchrun's processes in /proc")


@pytest.fixture
def endless(options, tmp_path) -> dict[str, Any]:
    never = {"num_epochs": 1e6, "validation_every_n_epochs": -1.0}
    return {**options, **never, "batchsize": 4, "model_file": str(tmp_path / "model")}


@pytest.mark.long
@needs_proc
def test_when_one_process_is_killed_all_end(endless, torchrun, arguments, tmp_path):
    process = torchrun(
        ["--standalone", "--nproc-per-node", "2"], ["train_model", *arguments(endless)], tmp_path / "host0"
    )
    wait_until_it_learns(process, tmp_path / "host0")
    workers = workers_of(process)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    assert process.wait(timeout=60) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@needs_proc
@mostly_long("rank", [0, 1], quick=1)
def test_when_one_host_dies_the_other_ends(endless, two_hosts, tmp_path, rank):
    """The one that everybody speaks to first, or the other: torchrun and its process at once."""
    hosts = two_hosts(endless)
    wait_until_it_learns(hosts[0], tmp_path / "host0")
    (worker,) = workers_of(hosts[1 - rank])
    power_off(hosts[rank])
    assert hosts[1 - rank].wait(timeout=60) != 0
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.long
@needs_proc
def test_when_one_host_says_nothing_the_other_ends(endless, two_hosts, tmp_path):
    hosts = two_hosts({**endless, "group_timeout": 10.0})
    wait_until_it_learns(hosts[0], tmp_path / "host0")
    for pid in (hosts[1].pid, *workers_of(hosts[1])):
        os.kill(pid, signal.SIGSTOP)
    assert hosts[0].wait(timeout=60) != 0


def workers_of(torchrun: Torchrun) -> list[int]:
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def power_off(torchrun: Torchrun) -> None:
    """Kill torchrun and what it started, at once: its processes have sessions of their own."""
    if torchrun.poll() is None:
        for pid in (torchrun.pid, *workers_of(torchrun)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        torchrun.wait()


def output(folder: Path) -> str:
    return (folder / "output").read_text(encoding="utf-8")


def wait_until_it_learns(torchrun: Torchrun, folder: Path) -> None:
    end = time.monotonic() + 300
    while "mean_loss" not in output(folder) and torchrun.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    assert torchrun.poll() is None, output(folder)
    assert "mean_loss" in output(folder)
