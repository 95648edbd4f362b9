"""Without a network: an error within seconds that says so, and no look-up of what can only be a path."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError
from polyencoder.hub import resolve
from polyencoder.hub.resolve import download_files, explain_invalid_hub_id, explain_unreachable, is_path

pytestmark = pytest.mark.slow


@pytest.fixture
def silent_server():
    """The address of a server that takes connections and says nothing, and what counts them."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", connections
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    "name",
    ["./name", "../x", "/x", "~/x", "~user", "a/b/c", "a/", "a\\b", "x.safetensors", "runs/model.pt", Path("a")],
)
def test_paths(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_path(name)
    assert explain_invalid_hub_id(name).startswith("no such folder or file")


@pytest.mark.parametrize("name", ["bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2", "a/b.c"])
def test_ids(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_path(name)
    assert explain_invalid_hub_id(name) is None


@pytest.mark.parametrize("name", ["", "a b", "n" * 97, "n" * 300, "é", "a:b", "a\nb", "\0"])
def test_what_no_hub_has(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no model on the hub can have this name" in explain_invalid_hub_id(name)


def test_a_home_that_no_shell_has_put_in(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").touch()
    assert explain_invalid_hub_id("~/model") == f"no such folder or file; did you mean {tmp_path / 'model'}?"


def test_offline_by_choice(no_network):
    with pytest.raises(CheckpointError, match=r"not downloaded before \(HF_HUB_OFFLINE is set\)"):
        download_files("no/such-model", ["config.json"])


def test_a_server_that_says_nothing(monkeypatch):
    monkeypatch.setattr(resolve, "SECONDS", 0.05)
    never = threading.Event()
    assert explain_unreachable("http://silent", never.wait) == "no answer in 0 seconds"
    never.set()

    def fail():
        raise OSError("no route to host")

    assert explain_unreachable("http://away", fail) == "no route to host"
    assert explain_unreachable("http://there", lambda: None) is None
    assert explain_unreachable("http://away", lambda: None) == "no route to host"  # not asked again at once


LOADS = """if True:
    import os
    import polyencoder.hub.resolve
    from polyencoder import Ranker
    from polyencoder.modeling.loading import load_tokenizer

    polyencoder.hub.resolve.SECONDS = 0.5
    for load in (Ranker.from_pretrained, Ranker.from_backbone, load_tokenizer):
        if (child := os.fork()) == 0:
            try:
                load("no/such-model")
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_hub_is_asked_once(silent_server, tmp_path):
    """Each process asks it once: transformers and huggingface_hub would ask for most of a minute."""
    address, connections = silent_server
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    command = [sys.executable, "-c", LOADS]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert len(lines) == len(connections) == 3
    assert all(f"{address} cannot be reached" in line for line in lines)
