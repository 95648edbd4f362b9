"""When a process does not join the others."""

from __future__ import annotations

import builtins
import os
import socket

import pytest
from parlai.agents.ranker.launch import launch

from polyencoder.errors import ConfigError
from polyencoder.training.process_group import VARIABLES

ADDRESSES = {"host0": "10.0.0.1", "host1": "127.0.1.1"}


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_no_time_to_wait(monkeypatch, seconds):
    """An error, also of the second process, after which `print` prints as before."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    printing = builtins.print
    with pytest.raises(ConfigError, match=f"timeout is {float(seconds)}; it must be seconds, above 0") as error:
        launch(["eval_model", "--group-timeout", seconds])
    assert error.value.argument == "timeout"
    assert builtins.print is printing


@pytest.mark.slow
def test_processes_with_different_flags(options, launched, tmp_path):
    flags = {**options, "model_file": str(tmp_path / "model"), "loglevel": "error", "batchsize": 4}
    errors = launched("train_model", flags, {**flags, "learningrate": 0.5})
    assert set(errors) == {
        "learningrate is 0.001 in process 0 and 0.5 in process 1: start all hosts with the same command"
    }


def test_a_host_that_is_somebody_else_to_the_others(launched, monkeypatch):
    """Debian has it so: a host's name stands for 127.0.1.1 on itself."""
    monkeypatch.setattr(socket, "gethostname", lambda: f"host{os.environ['RANK']}")
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, _: [(0, 0, 0, "", (ADDRESSES[name], 0))])
    errors = launched("eval_model", {"loglevel": "error"}, {"loglevel": "error"})
    assert set(errors) == {
        "host1 is 127.0.1.1 to itself, where no other host can reach it: set GLOO_SOCKET_IFNAME there to its network "
        "interface, as in GLOO_SOCKET_IFNAME=eth0"
    }
