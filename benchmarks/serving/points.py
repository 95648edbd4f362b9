"""Measures each point, a case with a number of clients: our server, the peer's, and the library without a server."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import describe_machine, run_in_process
from benchmarks.search.texts import iter_numbered
from benchmarks.serving.clients import Load, Outcome, ask
from benchmarks.serving.servers import start_server
from polyencoder.config import Backend
from polyencoder.index.open import open_index
from polyencoder.index.searcher import Searcher
from polyencoder.ranker import Ranker

DOCUMENTS = 50
TOP_K = 10
MANY = 64  # clients, by which the summary names its numbers
PATHS = {"rerank": "/v1/rerank", "search": "/v1/search"}
OURS, PEER, IN_PROCESS = "polyencoder", "sentence-transformers", "in process"

_WAITING = 150  # seconds, our server's limit for an answer: the last of 200 clients has 199 before it
_WARM = 8  # requests that are not counted

Side = Callable[[list[bytes], float], Outcome]
"""Answers as many bodies as possible in a number of seconds."""


def measure(
    flags: Namespace, points: Sequence[tuple[str, int]], model: Path, index: Path, texts: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """For each point, a case with a number of clients, a row of each system. SystemExit if a server does not start."""
    files = ("--model", str(model), "--index", str(index), "--threads", str(flags.threads))
    limits = ("--port", "0", "--timeout", str(_WAITING))
    serve = ("-m", "polyencoder", "serve", *limits, "--backend", flags.backend, *files)
    new = iter_numbered(texts[::-1])  # those that are indexed last
    with contextlib.ExitStack() as stack:
        ports = {
            OURS: stack.enter_context(start_server(*serve, path="/ready")).port,
            PEER: stack.enter_context(start_server("-m", "benchmarks.serving.peer", *files, path="/openapi.json")).port,
        }
        clients = stack.enter_context(run_in_process(partial(partial, ask), threads=1))
        calling = partial(_build_calling, model, index, flags.backend)
        library = stack.enter_context(run_in_process(calling, threads=flags.threads))

        def ask_server(system: str, case: str, n: int, bodies: list[bytes], seconds: float) -> Outcome:
            load = Load(port=ports[system], path=PATHS[case], bodies=bodies, clients=n, seconds=seconds)
            outcome: Outcome = clients(load)
            return outcome

        for case, n in points:
            sides: dict[str, Side] = {system: partial(ask_server, system, case, n) for system in ports}
            if n == 1:
                sides[IN_PROCESS] = partial(library, case)
            load = describe_machine()["load"]
            outcomes = _measure_in_turns(flags, sides, partial(make_bodies, case, new))
            yield [
                {"case": case, "system": name, "clients": n, **_build_row(outcome), "load": load}
                for name, outcome in outcomes.items()
            ]


def _measure_in_turns(
    flags: Namespace, sides: Mapping[str, Side], bodies: Callable[[int], list[bytes]]
) -> dict[str, Outcome]:
    """All sides get the same bodies, round by round."""
    warm = bodies(min(_WARM, flags.requests))
    for answer in sides.values():
        answer(warm, flags.seconds)
    outcomes = {name: Outcome() for name in sides}
    for _ in range(flags.rounds):
        block = bodies(-(-flags.requests // flags.rounds))
        for name, answer in sides.items():
            outcomes[name].add(answer(block, flags.seconds / flags.rounds))
    return outcomes


def _build_row(outcome: Outcome) -> dict[str, Any]:
    shares = np.quantile(outcome.seconds, [0.5, 0.95, 0.99]).tolist() if outcome.seconds else [float("nan")] * 3
    return {
        "requests": len(outcome.seconds),
        "per_second": len(outcome.seconds) / outcome.wall,
        **{name: 1e3 * value for name, value in zip(("p50_ms", "p95_ms", "p99_ms"), shares, strict=True)},
        "lost": outcome.lost.total(),
        **({"instead": dict(outcome.lost)} if outcome.lost else {}),
    }


def make_bodies(case: str, new: Iterator[str], count: int, *, documents: int = DOCUMENTS) -> list[bytes]:
    """Requests of a case, with texts that were in none before."""
    bodies = []
    for _ in range(count):
        body: dict[str, Any] = {"query": next(new)}
        if case == "rerank":
            body["documents"] = list(itertools.islice(new, documents))
        else:
            body["top_k"] = TOP_K
        bodies.append(json.dumps(body).encode())
    return bodies


def _build_calling(model: Path, index: Path, backend: Backend) -> Callable[[str, list[bytes], float], Outcome]:
    """Answers the requests of the server in this process: a case, bodies, and the seconds to spend."""
    ranker = Ranker.from_pretrained(model, backend=backend, device="cpu")
    searcher = Searcher(ranker, open_index(index, ranker), top_k=TOP_K)

    def answer(case: str, bodies: list[bytes], seconds: float) -> Outcome:
        outcome = Outcome()
        begun = time.perf_counter()
        for body in map(json.loads, bodies):
            start = time.perf_counter()
            if start > begun + seconds:
                break
            if case == "rerank":
                ranker.rank([body["query"]], body["documents"])
            else:
                searcher([[body["query"]]])
            outcome.seconds.append(time.perf_counter() - start)
        outcome.wall = time.perf_counter() - begun
        return outcome

    return answer
