"""Changes of the index one after the other: together where that is safe, each with its own result."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from polyencoder.errors import InputError, NoAnswerError
from polyencoder.index import rows
from polyencoder.index.entries import Candidate
from polyencoder.index.folder import shards
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.vectors import quantize
from polyencoder.serving.writing import IndexWriter
from tests.polyencoder.index.postgres.tables import names

pytestmark = pytest.mark.slow


@pytest.fixture(params=["folder", "postgres"])
def index(request, make_ranker, tmp_path):
    ranker, texts = make_ranker("bi"), ["hello", "guten tag"]
    if request.param == "folder":
        yield ranker.index(texts, tmp_path / "index")
        return
    address = f"{request.getfixturevalue('postgres').address}#{next(names)}"
    with PostgresIndex.make(address, [Candidate(text, text) for text in texts], ranker) as opened:
        yield opened


@pytest.fixture
def writer(index):
    index_writer = IndexWriter(index)
    yield index_writer
    index_writer.close()


def adding(name: str):
    return lambda index: index.put([Candidate(name, f"the text of {name}")])


def gathered(writer, *changes) -> list:
    """The results of changes, or their errors, all of which wait for the first."""

    async def run() -> list:
        return await asyncio.gather(*(writer.change(change) for change in changes), return_exceptions=True)

    return asyncio.run(run())


def blocked(writer, *changes) -> tuple[list, list]:
    """The same while an earlier change holds the thread, so that all of them wait; and the order that they ran in."""
    begun, order = threading.Event(), []
    noted = [lambda index, i=i, change=change: (order.append(i), change(index))[1] for i, change in enumerate(changes)]

    def first(index) -> None:
        begun.wait(20)
        adding("first")(index)

    async def run() -> list:
        tasks = [asyncio.ensure_future(writer.change(change)) for change in (first, *noted)]
        await asyncio.sleep(0.05)
        begun.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run()), order


def test_a_change_is_seen_when_it_returns(writer, index):
    assert gathered(writer, adding("a")) == [3]
    assert len(index) == 3
    assert gathered(writer, lambda index: index.remove(["a"])) == [2]


def test_waiting_changes_are_one_transaction(writer, index, monkeypatch):
    transactions = []
    changing = index.changing
    monkeypatch.setattr(index, "changing", lambda: (transactions.append(1), changing())[1])
    results, order = blocked(writer, adding("a"), adding("b"), adding("c"))
    assert results == [3, 6, 6, 6]  # each gets the number of all
    assert order == [0, 1, 2]
    assert len(transactions) < 1 + 3 + 1 + 3  # one of the writer's for three changes, and their own inside of it


def test_a_change_that_fails_leaves_the_others(writer, index):
    def bad(index) -> None:
        index.put([Candidate("half", "done")])
        index.remove(["no such id"])

    results, _ = blocked(writer, adding("a"), bad, adding("b"))
    assert [results[i] for i in (0, 1, 3)] == [3, 6, 6]
    assert isinstance(results[2], InputError)
    assert "no candidate has the id 'no such id'" in str(results[2])
    assert set(index.get_texts(["a", "b", "first"])) == {"a", "b", "first"}


def test_a_text_whose_vector_cannot_be_stored_leaves_the_other_changes(writer, index, monkeypatch):
    def poisoned(vectors, dtype, *, texts):
        bad = [[np.nan if "bad" in text else 1.0] for text in texts]
        return quantize(vectors * np.array(bad, np.float32), dtype, texts=texts)

    for module in (shards, rows):
        monkeypatch.setattr(module, "quantize", poisoned)
    results, _ = blocked(writer, adding("a"), adding("bad"), adding("b"))
    assert isinstance(results[2], InputError)
    assert set(index.get_texts(["a", "bad", "b", "first"])) == {"a", "b", "first"}
    assert all(isinstance(results[i], int) for i in (0, 1, 3))


@pytest.mark.parametrize("index", ["postgres"], indirect=True)
def test_changes_on_a_connection_that_is_lost_are_not_made(writer, index):
    def lost(index) -> None:
        with index.changing():
            index._change.session.ask("SELECT pg_terminate_backend(pg_backend_pid())")

    results, _ = blocked(writer, adding("a"), lost, adding("b"))
    assert results[0] == 3
    assert all(isinstance(result, NoAnswerError) for result in results[1:])
    assert set(index.get_texts(["a", "b", "first"])) == {"first"}
    assert gathered(writer, adding("a")) == [4]


def test_alone_a_failed_change_is_undone_whole(writer, index):
    def bad(index) -> None:
        index.put([Candidate("half", "done")])
        raise OSError("no room")

    (error,) = gathered(writer, bad)
    assert isinstance(error, OSError)
    assert len(index) == 2
    assert not index.get_texts(["half"])
    assert gathered(writer, adding("a")) == [3]  # the thread lives on


def test_a_client_that_stops_waiting_before_its_change_begins_cancels_it(writer, index):
    begun = threading.Event()

    async def run() -> None:
        first = asyncio.ensure_future(writer.change(lambda index: begun.wait(20) and None))
        second = asyncio.ensure_future(writer.change(adding("second")))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0)
        begun.set()
        await first

    asyncio.run(run())
    writer.close()
    assert not index.get_texts(["second"])
