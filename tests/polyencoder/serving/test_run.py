"""`polyencoder serve` as it is started: in a process of its own, with workers, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen

import httpx
import pytest

from polyencoder.cli.main import main
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.run import bind
from polyencoder.storage.files import write_text
from tests.commands import command_fails, run_command
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, started

pytestmark = pytest.mark.slow


def test_answers_are_not_held_back_by_nagles_algorithm():
    async def delays() -> list[int]:
        flags: list[int] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            flags.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind(ServerConfig(model="model", port=0)) as listener:
            async with await asyncio.start_server(answer, sock=listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                await reader.read()
                writer.close()
        return flags

    (without_delay,) = asyncio.run(delays())
    assert without_delay


def ask(url: str) -> list[str]:
    answer = httpx.post(f"{url}/v1/search", json={"query": "do you ski ?"}, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"]]


@pytest.mark.long
def test_workers_answer_alike_and_share_metrics(workspace):
    with started("--index", "replies", "--workers", "2", "--drain-seconds", "5") as (process, url):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, [url] * 24))
        assert len({tuple(answer) for answer in answers}) == 1
        counts = httpx.get(f"{url}/metrics", timeout=SECONDS).text
        assert float(re.search(r"polyencoder_finished_together_sum (\S+)", counts)[1]) >= 24
        address = httpx.URL(url).host, httpx.URL(url).port
        with socket.create_connection(address) as waiting:
            waiting.sendall(b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")  # and no body
            while "requests_under_way 1.0" not in httpx.get(f"{url}/metrics", timeout=SECONDS).text:
                time.sleep(0.005)
            process.send_signal(signal.SIGTERM)
            waiting.setblocking(False)
            with pytest.raises(BlockingIOError):  # that request is still waited for
                waiting.recv(1)
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


def test_int8_graphs_are_served_as_they_were_exported(workspace, make_ranker, monkeypatch):
    """From a model to a server, by the commands; int8 graphs search the index that they made."""
    pytest.importorskip("onnxruntime")
    (workspace / "exported").mkdir()
    run_command("export", "model", "exported/model", "--onnx", "--int8")
    monkeypatch.chdir(workspace / "exported")
    write_text(Path("replies.jsonl"), "\n".join(json.dumps({"id": reply.id, "text": reply.text}) for reply in REPLIES))
    int8 = ["--backend", "onnx-int8"]
    run_command("index", "-m", "model", "--candidates", "replies.jsonl", "--out", "replies", *int8)
    (exact,) = make_ranker("poly").score(["do you ski ?"], [reply.text for reply in REPLIES])
    expected = {reply.id: float(score) for reply, score in zip(REPLIES, exact, strict=True)}
    with started("--index", "replies", *int8) as (process, url):
        assert httpx.get(f"{url}/info", timeout=SECONDS).json()["backend"] == "onnx-int8"
        hits = httpx.post(f"{url}/v1/search", json={"query": "do you ski ?"}, timeout=SECONDS).json()["results"]
        scores = {hit["id"]: hit["score"] for hit in hits}
        assert scores == pytest.approx(expected, rel=0.1)
        assert scores != pytest.approx(expected, rel=1e-6)  # float32's
        body = {"query": "do you ski ?", "documents": [hit["text"] for hit in hits]}
        results = httpx.post(f"{url}/v1/rerank", json=body, timeout=SECONDS).json()["results"]
        assert sorted(row["index"] for row in results) == list(range(len(hits)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)
    with pytest.raises(CheckpointError, match="its vectors have another precision"):
        run_command("serve", "-m", "model", "--index", workspace / "replies", *int8)  # which torch made


def test_workers_end_with_the_process_that_started_them(workspace):
    forked = "import multiprocessing, uvicorn._subprocess as sub; sub.spawn = multiprocessing.get_context('fork')"
    with started("--workers", "2", before=forked) as (process, url):  # spawned, each would import torch
        process.kill()
        process.wait(SECONDS)
        until = time.monotonic() + SECONDS
        with contextlib.suppress(httpx.TransportError):
            while httpx.get(f"{url}/health", timeout=SECONDS):
                assert time.monotonic() < until
                time.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (["-m", "nothing"], CheckpointError, "nothing"),
        (["-m", "model", "-i", "nothing"], PolyencoderError, "nothing"),
        (["-m", "nowhere", "-i", "nothing"], PolyencoderError, "nothing"),  # before the model is loaded
        (["-m", "model", "--host", "0.0.0.0"], ConfigError, "no key"),
        (["-m", "model", "--host", "1.2.3.4", "--api-key", "a-long-secret"], ConfigError, "cannot listen"),
        (["-m", "model", "-i", "replies", "--min-probability", "0.5"], ConfigError, "calibrated"),
        (["-m", "model", "-i", "replies", "--rerank", "model"], PolyencoderError, "cross-encoder"),
        (["-m", "model", "--model-dtype", "int4"], ConfigError, "int4"),
        (["-m", "model", "--backend", "onnx-int8"], CheckpointError, "exported graphs"),
        (["-m", "model", "--no-answer", "no ."], ConfigError, "no_answer is read only with index"),
    ],
)
def test_what_cannot_be_served_is_one_error(workspace, options, error, says):
    command_fails(error, says, "serve", "--port", "0", *options)


def test_a_port_that_is_taken_is_an_error(workspace):
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        command_fails(ConfigError, "cannot listen", "serve", "-m", "model", "--port", occupied.getsockname()[1])


def test_a_port_belongs_to_one_server_before_it_is_announced():
    """Two that start at the same moment: the port is not taken when only the first of them answers."""
    with bind(ServerConfig(model="model", port=0)) as first:
        config = ServerConfig(model="model", port=first.getsockname()[1])
        with pytest.raises(ConfigError, match="cannot listen"):
            bind(config).close()
        socket.create_connection(first.getsockname()).close()


def test_the_key_may_stand_in_the_environment(workspace, monkeypatch):
    monkeypatch.setenv("POLYENCODER_API_KEY", "a-long-secret\n")  # as a Kubernetes secret may end
    command_fails(ConfigError, "cannot listen", "serve", "-m", "model", "--host", "1.2.3.4")
    monkeypatch.setenv("POLYENCODER_API_KEY", "short")
    command_fails(ConfigError, "key must be at least 8", "serve", "-m", "model")


def test_without_the_extra_the_message_names_it(workspace, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    command_fails(ConfigError, r"parlai-polyencoder\[serve\]", "serve", "-m", "model")


def test_what_is_under_way_is_finished_when_a_server_is_told_to_end(workspace):
    with started("--index", "replies", "--threads", "1", "--drain-seconds", "60") as (process, url):
        assert len(ask(url)) == len(REPLIES)
        body = {"query": "hello", "documents": [f"do you ski {n} ?" * 5 for n in range(1000)]}
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(httpx.post, f"{url}/v1/rerank", json=body, timeout=SECONDS) for _ in range(4)]
            while "requests_under_way 4.0" not in httpx.get(f"{url}/metrics", timeout=SECONDS).text:
                assert not all(answer.done() for answer in answers)
                time.sleep(0.005)
            process.send_signal(signal.SIGTERM)
            assert [answer.result().status_code for answer in answers] == [200] * 4
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


SIGNALLED = """
import sys, signal
from functools import partial
import uvicorn
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.run import bind, delay_signals, build_uvicorn_config

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})

on_tick = uvicorn.Server.on_tick

async def tick(server, counter):
    if counter == 0:
        print(listener.getsockname()[1], flush=True)
        sys.stdin.readline()
    return await on_tick(server, counter)

uvicorn.Server.on_tick = tick
signal.signal(signal.SIGTERM, lambda number, frame: print("the program's handler", flush=True))
config = ServerConfig(model="model", port=0)
with bind(config) as listener:
    uvicorn.Server(build_uvicorn_config(config, partial(delay_signals, app))).run(sockets=[listener])
"""


def test_what_came_before_a_signal_is_answered_too():
    """Both come while the process has no processor: after the server has looked at its socket for the last time."""
    command = [sys.executable, "-c", SIGNALLED]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate("\n", timeout=SECONDS)
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    assert rest.splitlines() == ["the program's handler"]  # uvicorn raises the signal again
    assert process.returncode == 0


def test_what_takes_too_long_is_given_up_when_a_server_is_told_to_end(workspace):
    with started("--threads", "1", "--drain-seconds", "1") as (process, url):
        waiting = socket.create_connection((httpx.URL(url).host, httpx.URL(url).port))
        head = "POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        waiting.sendall(head.encode())  # the body never comes
        while "requests_under_way 1.0" not in httpx.get(f"{url}/metrics", timeout=SECONDS).text:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)
        waiting.close()


def test_errors_of_limits_name_their_flags(workspace, capsys, monkeypatch):
    for flag in ("--max-bytes", "--timeout", "--drain-seconds"):
        monkeypatch.setattr(sys, "argv", ["polyencoder", "serve", "-m", "model", flag, "0"])
        with pytest.raises(SystemExit):
            main()
        assert f"(flag {flag})" in capsys.readouterr().err
