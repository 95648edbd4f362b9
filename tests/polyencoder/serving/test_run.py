"""`polyencoder serve` as it is started: in a process of its own, with workers, and its errors."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from typer.testing import CliRunner

from polyencoder.cli.main import app
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError
from tests.polyencoder.serving.conftest import REPLIES, SECONDS


@pytest.fixture
def place(make_ranker, tmp_path, monkeypatch):
    """A folder with the model `model` and its index `replies`."""
    ranker = make_ranker("poly")
    ranker.save_pretrained(tmp_path / "model")
    ranker.index(REPLIES, tmp_path / "replies")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def started(*options: str):
    """A process of `polyencoder serve` with its URL, once it is ready."""
    command = [sys.executable, "-m", "polyencoder.cli.main", "serve", "-m", "model", "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = []
            while not (found := re.search(r"serving model on (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            until = time.monotonic() + SECONDS
            while True:
                try:
                    if httpx.get(f"{found[1]}/ready", timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                assert time.monotonic() < until
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            yield process, found[1]
        finally:
            process.kill()


def ask(url: str) -> list[str]:
    answer = httpx.post(f"{url}/v1/search", json={"query": "do you ski ?"}, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["results"]]


def test_a_server_ends_well_when_it_is_told_to(place, make_ranker):
    with started("--index", "replies", "--threads", "1") as (process, url):
        assert len(ask(url)) == len(REPLIES)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


def test_workers_answer_alike_and_share_sessions_and_metrics(place):
    with started("--index", "replies", "--workers", "2") as (process, url):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, [url] * 24))
        assert len({tuple(answer) for answer in answers}) == 1
        session: dict = {}
        said = []
        for _ in range(4):  # each on a connection of its own, which any worker may take
            answer = httpx.post(f"{url}/v1/chat", json={"message": "hello", **session}, timeout=SECONDS).json()
            session = {"session": answer["session"]}
            said.append(answer["reply"])
        assert len(set(said)) == 4
        counts = httpx.get(f"{url}/metrics", timeout=SECONDS).text
        assert float(re.search(r"polyencoder_finished_together_sum (\S+)", counts)[1]) >= 28
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (["-m", "nothing"], CheckpointError, "nothing"),
        (["-m", "model", "-i", "nothing"], PolyencoderError, "nothing"),
        (["-m", "model", "--host", "0.0.0.0"], ConfigError, "no key"),
        (["-m", "model", "--host", "1.2.3.4", "--api-key", "a-long-secret"], ConfigError, "cannot listen"),
        (["-m", "model", "-i", "replies", "--min-probability", "0.5"], ConfigError, "calibrated"),
        (["-m", "model", "-i", "replies", "--rerank", "model"], PolyencoderError, "cross-encoder"),
        (["-m", "model", "--model-dtype", "int4"], ConfigError, "int4"),
        (["-m", "model", "--backend", "onnx-int8"], CheckpointError, "exported graphs"),
        (["-m", "model", "--sessions", "no/folder/file"], ConfigError, "sessions"),
    ],
)
def test_what_cannot_be_served_is_one_error(place, options, error, says):
    result = CliRunner().invoke(app, ["serve", "--port", "0", *options])
    assert isinstance(result.exception, error)
    assert says in str(result.exception)


def test_a_port_that_is_taken_is_an_error(place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(app, ["serve", "-m", "model", "--port", str(taken.getsockname()[1])])
    assert isinstance(result.exception, ConfigError)
    assert "cannot listen" in str(result.exception)


def test_the_key_may_stand_in_the_environment(place, monkeypatch):
    monkeypatch.setenv("POLYENCODER_API_KEY", "short")
    result = CliRunner().invoke(app, ["serve", "-m", "model"])
    assert "key must be at least 8" in str(result.exception)


def test_without_the_extra_the_message_names_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = CliRunner().invoke(app, ["serve", "-m", "model"])
    assert "parlai-polyencoder[serve]" in str(result.exception)
