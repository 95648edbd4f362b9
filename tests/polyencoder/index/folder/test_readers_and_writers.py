"""Processes that search an index while others change it, and are killed at it: each search sees one state of it.

    STRESS_SECONDS=300 pytest tests/polyencoder/index/folder/test_readers_and_writers.py

State n of the index has `COUNT` candidates, all of which say n in their metadata; which ones, and with which texts,
follows from n. So whatever is found can be told to be a state, whole and with the scores of its own texts, or none.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from polyencoder.index import Candidate, FolderIndex, build_index, verify
from polyencoder.ranker import Ranker

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("STRESS_SECONDS", "6"))
CHANGES = 6  # there are at least, however slow the machine is
COUNT, POOL = 12, 17
CONTEXT = ["hello , how are you ?"]


def state(n: int) -> dict[str, Candidate]:
    """The candidates of state n, by id: one is gone, one new since state n - 1, and at times all have other texts."""
    numbers = [(n + i) % POOL for i in range(COUNT)]
    return {str(i): Candidate(str(i), f"text {i} {n // 3 % 2}", {"n": n}) for i in numbers}


def number_of(index: FolderIndex) -> int:
    """Which state an index is in."""
    with index._database.snapshot() as last:
        return next(metadata["n"] for pairs in last.entries_of(range(last.rows)).values() for _, metadata in pairs)


def change(index: FolderIndex) -> int:
    """The next state, by every kind of change, as one."""
    with index.changing():
        n = 1 + number_of(index)
        old, new = state(n - 1), state(n)
        index.remove(old.keys() - new.keys())
        index.update(new[i] for i in old.keys() & new.keys())
        index.add(new[i] for i in new.keys() - old.keys())
        if n % 3 == 0:
            index.compact()
        if n % 4 == 0:
            index.build_faiss("ivf-flat" if n % 8 else "hnsw")
    time.sleep(random.uniform(0.05, 0.15))  # the other writer looks every 0.05 s whether it is its turn
    return n


class Reader:
    """Searches again and again with one open index, at times with another."""

    def __init__(self, folder: Path, ranker: Ranker, seed: int) -> None:
        self.folder, self.ranker, self.random = folder, ranker, random.Random(seed)
        self.contexts = ranker.encode_contexts([CONTEXT])
        texts = [f"text {i} {variant}" for i in range(POOL) for variant in range(2)]
        self.score_of = dict(zip(texts, ranker.score([CONTEXT], texts)[0].tolist(), strict=True))
        self.index = FolderIndex.open(folder, ranker)
        self.last = self.searches = 0

    def search(self) -> None:
        if self.random.random() < 0.1:
            self.index = FolderIndex.open(self.folder, self.ranker)
        n = self.last + self.random.randrange(3)
        filter = {"n": n} if self.random.random() < 0.3 else None
        exactness = self.random.choice([None, "exact", "certified"])
        (hits,) = self.index.search(self.contexts, top_k=COUNT, filter=filter, exactness=exactness)
        self.searches += 1
        if filter is None or hits:
            (n,) = {hit.metadata["n"] for hit in hits}
            assert {hit.id: hit.text for hit in hits} == {i: one.text for i, one in state(n).items()}
            for hit in hits:
                assert hit.score == pytest.approx(self.score_of[hit.text], rel=1e-4, abs=1e-4)
            assert n >= self.last, "an older state than before"
            self.last = n


def in_a_process(work, folder: Path, *arguments) -> multiprocessing.Process:
    """`work(*arguments)` until there is a file `stop`; what goes wrong is written into the file `error`."""

    def run() -> None:
        try:
            while not (folder.parent / "stop").exists():
                work(*arguments)
        except BaseException:
            (folder.parent / f"error-{os.getpid()}").write_text(traceback.format_exc())
            raise

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    return process


def test_each_search_sees_one_state(tmp_path, make_ranker):
    pytest.importorskip("faiss")
    ranker, folder, rng = make_ranker("poly"), tmp_path / "index", random.Random(0)
    build_index(folder, state(0).values(), ranker, shard_size=5)
    readers = [in_a_process(Reader(folder, ranker, seed).search, folder) for seed in range(2)]

    def writer() -> multiprocessing.Process:
        return in_a_process(change, folder, FolderIndex.open(folder, ranker))

    writers = [writer(), writer()]
    start = time.monotonic()

    def goes_on() -> bool:
        if list(tmp_path.glob("error-*")) or (elapsed := time.monotonic() - start) > 20 * SECONDS:
            return False
        return elapsed < SECONDS or number_of(FolderIndex.open(folder, ranker)) < CHANGES

    while goes_on():
        time.sleep(rng.uniform(0.02, 0.4))
        i = rng.randrange(len(writers))
        writers[i].kill()
        writers[i].join()
        writers[i] = writer()
    (tmp_path / "stop").touch()
    for process in (*readers, *writers):
        process.join(60)
        assert process.exitcode == 0, "".join(path.read_text() for path in tmp_path.glob("error-*"))

    reader = Reader(folder, ranker, seed=2)
    n = change(FolderIndex.open(folder, ranker))
    for _ in range(20):
        reader.search()
    assert reader.last == n
    assert n > CHANGES  # they did something
    verify(folder)
    named = {*(file.name for file in reader.index.state.files), "index.sqlite", "meta.json", ".lock"}
    logs = {"index.sqlite-wal", "index.sqlite-shm"}
    assert {path.name for path in folder.iterdir()} - logs == named
    assert len(list(folder.glob("faiss*"))) == (1 if reader.index.meta.faiss else 0)
    vectors = reader.index.vectors
    texts = reader.index.texts()
    np.testing.assert_allclose(
        vectors.take(np.arange(len(texts))), ranker.encode_candidates(texts), rtol=1e-5, atol=1e-6
    )
