"""Measures the server without torch beside that with torch and sentence-transformers behind FastAPI.

    python -m benchmarks.serving.without_torch --runtime RUNTIME/bin/python --json

`--runtime` is the Python of an environment with polyencoder-runtime and its extra `serve`. `start_cpu_s` is the
processor's time from the start of the process to its first answer, `resident_mb` the memory then. Then 1 and 64 clients
let 20 documents be ranked, new to the server, each when its last request is answered; all servers in turns.
`per_second` is by the clock, and `cpu_ms` the server's processor time for a request, which says the same on a busy
machine. One thread for each model, all-MiniLM-L6-v2 as a bi-encoder; `--model FOLDER` is another with graphs in float32
and int8. With `--index FOLDER`, an index of the model in float32, the requests are searches of it by the two servers in
float32.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import build_parser, find_minilm_folder, print_report, read_memory_mb, run_in_process
from benchmarks.search.texts import iter_numbered, make_candidates
from benchmarks.serving.clients import Load, ask
from benchmarks.serving.points import MANY, PATHS, make_bodies
from benchmarks.serving.servers import Server, start_server
from polyencoder.export.folder import export_folder
from polyencoder.ranker import Ranker

DOCUMENTS = 20
RUNTIME, PEER = "without torch, int8", "sentence-transformers"
BACKENDS = {RUNTIME: "onnx-int8", "torch, int8": "onnx-int8", "without torch, float32": "onnx", "torch": "torch"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--runtime", required=True, help="Python of an environment with polyencoder-runtime[serve]")
    parser.add_argument("--model", type=Path, help="a folder with graphs in float32 and int8 (default: MiniLM)")
    parser.add_argument("--servers", nargs="+", default=[*BACKENDS, PEER], choices=[*BACKENDS, PEER])
    parser.add_argument("--requests", type=int, default=256, help="of each server with each number of clients")
    parser.add_argument("--rounds", type=int, default=4, help="in which they are sent (--quick: 1)")
    parser.add_argument("--index", help="a folder, for searches in place of ranking; needs --model")
    flags = parser.parse_args(arguments)
    if flags.index and not flags.model:
        parser.error("--index is of a model: give --model, too")
    case = "search" if flags.index else "rerank"
    if flags.index:
        flags.servers = [name for name in flags.servers if BACKENDS.get(name) in ("onnx", "torch")]
    rounds = 1 if flags.quick else flags.rounds
    count = -(-(min(flags.requests, 16) if flags.quick else flags.requests) // rounds)
    texts = iter_numbered(make_candidates(1_000))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = flags.model
        if model is None:
            model = folder / "minilm"
            ranker = Ranker.from_backbone(find_minilm_folder(), "bi", share_encoders=True, device="cpu")
            export_folder(ranker, model, onnx=True, int8=True)
        served = ("--index", flags.index) if flags.index else ()
        if PEER in flags.servers:
            Ranker.from_pretrained(model, device="cpu").index(["a text"], folder / "index")
        clients = stack.enter_context(run_in_process(partial(partial, ask), threads=1))
        rows: list[dict[str, Any]] = []
        servers = {}
        for name in flags.servers:
            files = ("--model", str(model), "--threads", "1")
            command: tuple[str, ...]
            if name == PEER:
                command = ("-m", "benchmarks.serving.peer", "--index", str(folder / "index"), *files)
            else:
                command = ("-m", "polyencoder", "serve", "--port", "0", "--backend", BACKENDS[name], *files, *served)
            python = flags.runtime if name.startswith("without") else sys.executable
            path = "/openapi.json" if name == PEER else "/ready"
            servers[name] = stack.enter_context(start_server(*command, path=path, python=python))
            _load(clients, servers[name], make_bodies(case, texts, 1, documents=DOCUMENTS), 1, case=case)
            resident = read_memory_mb("VmRSS", servers[name].pid)
            rows.append({"server": name, "start_cpu_s": _read_cpu_seconds(servers[name]), "resident_mb": resident})
        for n in (1, MANY):
            measured: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
            for _ in range(rounds):
                bodies = make_bodies(case, texts, count, documents=DOCUMENTS)
                for name, server in servers.items():
                    before = _read_cpu_seconds(server)
                    per_second = _load(clients, server, bodies, n, case=case)
                    measured[name].append((per_second, 1e3 * (_read_cpu_seconds(server) - before) / count))
            for row in rows:
                rates, times = zip(*measured[row["server"]], strict=True)
                row |= {f"per_second_{n}": statistics.median(rates), f"cpu_ms_{n}": statistics.median(times)}
    cpu_ms = {row["server"]: row[f"cpu_ms_{MANY}"] for row in rows}
    ratio = cpu_ms[PEER] / cpu_ms[RUNTIME] if {PEER, RUNTIME} <= cpu_ms.keys() else None
    settings = {"model": str(flags.model or "all-MiniLM-L6-v2"), "index": flags.index, "requests": count * rounds}
    settings["documents"] = None if flags.index else DOCUMENTS
    report = {"benchmark": "serving.without_torch", "settings": settings, "rows": rows}
    print_report(report | {"summary": {f"peer's cpu_ms_{MANY} / {RUNTIME}": ratio}}, as_json=flags.json)


def _load(clients: Any, server: Server, bodies: list[bytes], n: int, *, case: str) -> float:
    """Requests a second. SystemExit if one has no answer."""
    outcome = clients(Load(port=server.port, path=PATHS[case], bodies=bodies, clients=n, seconds=600))
    if outcome.lost:
        raise SystemExit(f"requests without an answer: {dict(outcome.lost)}")
    return len(outcome.seconds) / outcome.wall


def _read_cpu_seconds(server: Server) -> float:
    """Seconds of the processor so far."""
    values = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
