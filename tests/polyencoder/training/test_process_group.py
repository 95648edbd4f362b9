"""What a process knows of the others, and when it does not join them; groups of several: cli/test_torchrun.py."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist

from polyencoder.errors import ConfigError
from polyencoder.training.process_group import VARIABLES, Ranks, is_grouped, process_group


def variables(monkeypatch, *values: str) -> None:
    for name, value in zip(VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)


def test_the_place_of_a_process(monkeypatch):
    variables(monkeypatch, "5", "8", "1", "4", "host", "29500")
    assert is_grouped()
    assert Ranks.from_environment() == Ranks(rank=5, count=8, local_rank=1, local_count=4)
    monkeypatch.setenv("LOCAL_RANK", "")
    assert not is_grouped()
    with pytest.raises(ConfigError, match="LOCAL_RANK is not set: start this process with torchrun"):
        Ranks.from_environment()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_no_time_to_wait(seconds):
    with (
        pytest.raises(ConfigError, match=f"timeout is {seconds}; it must be seconds, above 0"),
        process_group(Ranks(0, 1, 0, 1), {}, timeout=seconds),
    ):
        pass


def test_a_single_host_may_be_a_loopback_address_to_itself(monkeypatch):
    """Debian has it so; for several hosts it is an error: tests/agents/ranker/test_group.py."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables(monkeypatch, "0", "1", "0", "1", "127.0.0.1", str(port))
    with process_group(Ranks.from_environment(), {"seed": 0}, on_cpu=True) as device:
        assert device.type == "cpu"
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()
