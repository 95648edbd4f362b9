"""The serving benchmark in miniature: real servers of a tiny model, real clients."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from benchmarks.serving import clients
from benchmarks.serving.__main__ import main, summarize
from benchmarks.serving.clients import Load, ask
from benchmarks.serving.points import IN_PROCESS, OURS, PEER
from polyencoder.ranker import Ranker

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


@pytest.mark.long
def test_report(backbone_folder, tmp_path, capsys):
    for package in ("fastapi", "uvicorn", "prometheus_client", "sentence_transformers"):
        pytest.importorskip(package)
    short = {"text_truncate": 30, "label_truncate": 10}
    ranker = Ranker.from_backbone(
        backbone_folder("bert"), "poly", device="cpu", reduction="mean", n_codes=4, text=short
    )
    ranker.save_pretrained(tmp_path / "model")
    options = ["--quick", "--json", "--requests", "8", "--candidates", "40", "--threads", "1"]
    options += ["--folder", str(tmp_path), "--out", str(tmp_path / "out.json")]
    main([*options, "--only", "rerank:1"])
    first = json.loads(capsys.readouterr().out)["rows"]
    main([*options, "--clients", "1", "64"])
    report = json.loads(capsys.readouterr().out)
    assert report["rows"][: len(first)] == first  # not measured again
    assert json.loads((tmp_path / "out.json").read_text()) == report
    main([*options, "--clients", "1", "64"])
    assert json.loads(capsys.readouterr().out)["rows"] == report["rows"]
    with pytest.raises(SystemExit, match="give another --out"):
        main([*options, "--rounds", "2", "--requests", "9"])
    rows = {(row["case"], row["clients"], row["system"]): row for row in report["rows"]}
    systems = {1: [OURS, PEER, IN_PROCESS], 64: [OURS, PEER]}
    assert list(rows) == [(case, n, system) for case in ("rerank", "search") for n in systems for system in systems[n]]
    for row in rows.values():
        assert (row["requests"], row["lost"]) == (8, 0)
        assert row["per_second"] > 0
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    summary = report["summary"]
    many = [rows["rerank", 64, system]["per_second"] for system in (OURS, PEER)]
    alone = [rows["rerank", 1, system]["p99_ms"] for system in (OURS, IN_PROCESS)]
    assert summary["throughput_64_vs_peer"] == pytest.approx(many[0] / many[1])
    assert summary["p99_1_vs_in_process"] == pytest.approx(alone[0] / alone[1])
    assert summary["lost"] == 0


def test_what_was_not_measured_is_none_and_only_our_losses_count():
    rows = [
        {"case": case, "clients": 8, "system": system, "per_second": 2.0, "p99_ms": 1.0, "lost": lost}
        for case, system, lost in (("rerank", OURS, 1), ("search", OURS, 2), ("rerank", PEER, 4))
    ]
    assert summarize(rows) == {"throughput_64_vs_peer": None, "p99_1_vs_in_process": None, "lost": 3}


def _answering(answers: list[bytes], load: Load) -> tuple[clients.Outcome, list[bytes]]:
    """The outcome of a load when a server gives these answers in turn, and the requests that it got."""
    requests: list[bytes] = []

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                requests.append(await reader.readexactly(length))
                writer.write(answer := answers.pop(0))
                await writer.drain()
                if b"cut" in answer:
                    break
        except (EOFError, OSError, IndexError):
            pass
        finally:
            writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await clients._ask(Load(**{**vars(load), "port": port}))

    return asyncio.run(run()), requests


def test_clients_count_what_is_lost():
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    refused = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\ncut"
    bodies = [b"one", b"two", b"three", b"four", b"five"]
    load = Load(port=0, path="/", bodies=bodies, clients=1, seconds=60)
    outcome, requests = _answering([whole, refused, half, b"garbage\r\n\r\n", whole], load)
    assert requests == bodies
    assert len(outcome.seconds) == 2
    assert outcome.lost == Counter({"503": 1, "IncompleteReadError": 1, "IndexError": 1})
    assert all(0 <= seconds <= outcome.wall for seconds in outcome.seconds)


def test_nobody_asks_when_the_time_is_over():
    outcome, requests = _answering([], Load(port=0, path="/", bodies=[b"one"], clients=3, seconds=0))
    assert (outcome.seconds, outcome.lost, requests) == ([], Counter(), [])


def test_who_nobody_listens_to_has_lost_everything():
    outcome = ask(Load(port=1, path="/", bodies=[b"one", b"two"], clients=2, seconds=60))
    assert outcome.lost.total() == 2
    assert not outcome.seconds


def test_arguments(capsys):
    with pytest.raises(SystemExit):
        main(["--requests", "0"])
    assert "must be above 0" in capsys.readouterr().err
    for point in ("rerank", "rerank:0", "chat:8"):
        with pytest.raises(SystemExit):
            main(["--only", point])
        assert "a colon and a number of clients" in capsys.readouterr().err
