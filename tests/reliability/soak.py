"""A server answers request after request, one in ten of them hostile: memory, threads, files and handles do not grow.

The application runs in this process, without a socket; eight requests are open at a time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np

from polyencoder.index import FolderIndex
from polyencoder.serving.app import create_app
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.service import Service
from tests.reliability.world import TEXTS, Budget, Counts, entries, records, tiny_ranker

AT_ONCE = 8
WARM = 10_000  # requests before memory is looked at
MOST_MB = 1.0  # in 10,000 requests

HOSTILE: list[dict[str, Any]] = [
    {"content": b"\xff\xfe not json"}, {"content": b"[" * 5_000}, {"content": b"x" * (9 << 20)}, {"json": {}},
    {"json": {"query": "\ud800"}}, {"json": {"query": "a", "top_k": -1}}, {"json": {"query": ["a"] * 2_000}},
    {"json": {"messages": [{"role": "user", "content": "a"}] * 2_000}}, {"json": {"query": "a", "documents": [None]}},
    {"json": {"query": "a", "documents": ["b"], "filter": {"'; drop table entries": {"$gt": 1}}}},
    {"json": {"candidates": [{"text": ""}]}}, {"json": {"ids": 7}}, {"headers": {"Host": "evil.example"}, "json": {}},
]  # fmt: skip
ROUTES = ["/v1/rerank", "/v1/search", "/v1/chat", "/v1/candidates", "/v1/embeddings", "/v1/select"]


def request(draw: random.Random) -> tuple[str, dict[str, Any], bool]:
    """A random request: its kind, what httpx takes, and whether it is hostile."""
    texts = draw.sample(TEXTS, 4)
    if draw.random() < 0.1:
        return "hostile", {"method": "POST", "url": draw.choice(ROUTES), **draw.choice(HOSTILE)}, True
    kind = draw.choice(("rank", "search", "put", "delete", "chat"))
    bodies: dict[str, tuple[str, str, Any]] = {
        "rank": ("POST", "/v1/rerank", {"query": texts[0], "documents": texts[1:]}),
        "search": ("POST", "/v1/search", {"query": texts[0], "top_k": draw.choice([1, 5, 20])}),
        "put": ("PUT", "/v1/candidates", {"candidates": [{"id": f"id {draw.randrange(40)}", "text": texts[0]}]}),
        "delete": ("DELETE", "/v1/candidates", {"ids": [f"id {draw.randrange(10, 40)}"]}),
        "chat": ("POST", "/v1/chat", {"messages": [{"role": "user", "content": texts[0]}]}),
    }
    method, url, body = bodies[kind]
    return kind, {"method": method, "url": url, "json": body}, False


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def count_resources(folder: Path) -> dict[str, int]:
    """The resources that a server must give back, with their numbers."""
    gc.collect()
    files = [path for path in folder.rglob("*") if path.suffix == ".part" or "temporary" in path.parts[:-1]]
    return {"handles": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(), "files": len(files)}


async def ask(client: httpx.AsyncClient, draw: random.Random, counts: Counts, turns: Any, used: list[Any]) -> None:
    for number in turns:
        kind, sent, hostile = request(draw)
        counts.count(kind)
        try:
            answer = await client.request(**sent)
        except UnicodeEncodeError:  # httpx itself cannot send it
            continue
        expected = 400 <= answer.status_code < 500 if hostile else answer.status_code == 200
        if not expected:
            counts.fail("wrong", f"{sent['method']} {sent['url']}: {answer.status_code} {answer.text[:300]}, {kind}")
        if number % 500 == 0:
            gc.collect()
            used.append((number, megabytes()))


async def ask_all(service: Service, draw: random.Random, counts: Counts, budget: Budget, used: list[Any]) -> None:
    app, turns = create_app(service), budget(counts)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await asyncio.gather(*(ask(client, draw, counts, turns, used) for _ in range(AT_ONCE)))


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    counts, draw, used = Counts(), random.Random(seed), []
    ranker = tiny_ranker(seed=seed)
    ranker.index(records(entries(TEXTS[:40])), folder / "index").close()

    def serve(budget: Budget, counts: Counts) -> None:
        index = FolderIndex.open(folder / "index", ranker)
        config = ServerConfig(model="tiny", index=str(folder / "index"), port=0)
        service = Service.from_config(config, Forward(ranker), index=index)
        try:
            asyncio.run(ask_all(service, draw, counts, budget, used))
        finally:
            service.close()

    (folder / "temporary").mkdir()
    with mock.patch.object(tempfile, "tempdir", str(folder / "temporary")):
        serve(Budget(trials=50), Counts())  # what is imported and made once
        before = count_resources(folder)
        used.clear()
        serve(budget, counts)
        after = count_resources(folder)
    for name in before:
        if after[name] > before[name]:
            counts.fail("wrong", f"{after[name]} {name}, {before[name]} before")
    late = np.array([each for each in used if each[0] >= WARM])
    if len(late) > 10:
        slope = 10_000 * float(np.polyfit(*late.T, 1)[0])
        counts.of["KB more in 10,000 requests"] = round(1_000 * slope)
        if slope > MOST_MB:
            counts.fail("wrong", f"memory: {slope:.1f} MB more in 10,000 requests")
    return counts
