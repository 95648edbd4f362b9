"""Changes of an index in PostgreSQL: transactions, of several writers, that a kill or a lost server leaves whole."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import polyencoder.index.postgres.connection as connection_module
import polyencoder.index.postgres.index as index_module
import polyencoder.index.postgres.table as table_module
from polyencoder.errors import CheckpointError, ConfigError, InputError, NoAnswerError, PolyencoderError
from polyencoder.index import open_index
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints
from polyencoder.index.open import describe_index
from polyencoder.index.postgres.connection import Server
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.postgres.table import Table, parse_kind
from tests.polyencoder.index.postgres.tables import drawn, names, stored

SAMPLE = [Candidate(f"id {i}", f"text {i}", {"n": i} if i % 2 else None) for i in range(6)]


def contents(index: PostgresIndex) -> dict[str, tuple]:
    rows = index._read(lambda table: table.ask("SELECT id, text, metadata FROM {table}"))
    return {id_: (text, metadata) for id_, text, metadata in rows}


@pytest.fixture
def index(where, ranker) -> Iterator[PostgresIndex]:
    with PostgresIndex.make(where, SAMPLE, ranker, model_name="models/mine") as opened:
        yield opened


@pytest.mark.slow
def test_changes_are_counted_and_texts_read_in_steps(index, monkeypatch):
    monkeypatch.setattr(index_module, "ROWS_AT_ONCE", 2)
    additions = [Candidate("new", "a"), Candidate("new", "a"), Candidate("newer", "b")]
    assert (index.add([*SAMPLE, *additions]), index.put(additions)) == (2, 0)
    assert (index.update([*SAMPLE, Candidate("new", "c")]), index.remove(["gone", "new"], missing_ok=True)) == (1, 1)
    monkeypatch.setattr(table_module, "ROWS_AT_ONCE", 2)
    calls, ask = [], Table.ask
    monkeypatch.setattr(Table, "ask", lambda self, text, values=None: calls.append(values) or ask(self, text, values))
    texts = {candidate.id: candidate.text for candidate in [*SAMPLE, additions[-1]]}
    assert index.get_texts(candidate.id for candidate in [*SAMPLE, *additions]) == texts
    assert [len(values[0]) for values in calls if isinstance(values, tuple)] == [2, 2, 2, 2, 1]
    vectors = index.get_vectors(iter(["id 1", "gone", "newer", "id 2"]))
    expected = index._ranker.encode_candidates(["text 1", "b", "text 2"])
    np.testing.assert_allclose([vectors[id_] for id_ in ("id 1", "newer", "id 2")], expected, rtol=1e-5, atol=1e-6)


def test_an_error_in_a_block_says_what_it_is(index):
    """Other changes of the block may follow it, unless the connection is lost, and with it those before."""

    def fails(query: str) -> None:
        with index.changing():
            index.remove(["a"], missing_ok=True)
            index._change.session.ask(query)

    def caught(query: str, *, kind: type[Exception], match: str) -> None:
        with index.changing():
            index.put([Candidate("a", "hello")])
            with pytest.raises(kind, match=match):
                fails(query)

    caught("SELECT 1 / 0", kind=PolyencoderError, match=r"PostgreSQL refused the request \(division by zero")
    assert index.remove(["a"]) == 1
    lost = {"kind": NoAnswerError, "match": "PostgreSQL does not answer"}
    with pytest.raises(NoAnswerError, match="PostgreSQL does not answer"):
        caught("SELECT pg_terminate_backend(pg_backend_pid())", **lost)
    assert {*contents(index)} == {candidate.id for candidate in SAMPLE}


def test_a_search_sees_one_state(index):
    def ask(table):
        first = table.count()
        index.remove(["id 0"])
        return first, table.count()

    assert index._read(ask) == (6, 6)
    assert len(index) == 5


def test_writers_at_once_lose_nothing(where, index, ranker):
    def write(writer: int) -> None:
        writer_index = PostgresIndex.open(where, ranker)
        for i in range(5):
            writer_index.put([Candidate(f"{writer} {i}", "hello"), Candidate("shared", f"by {writer}")])
        writer_index.close()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    assert len(index) == 6 + 3 * 5 + 1


def test_makers_at_once_make_one_index(where, ranker):
    def make(part: int) -> None:
        PostgresIndex.make(where, [Candidate(f"{part} {i}", f"text {i}") for i in range(3)], ranker)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(make, range(3)))
    with open_index(where, ranker) as index:
        assert len(index) == 9


def test_a_build_that_ends_early_leaves_nothing(where, ranker):
    def interrupt_build():
        yield from SAMPLE
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        PostgresIndex.make(where, interrupt_build(), ranker)
    with pytest.raises(CheckpointError, match="no index"):
        open_index(where, ranker)


def test_the_model_is_checked(where, index, make_ranker):
    with pytest.raises(CheckpointError, match="made by another model"):
        PostgresIndex.make(where, SAMPLE, make_ranker("poly", seed=1))
    read_only = open_index(where, index.meta.fingerprints)
    read_only.remove(["id 0"])
    with pytest.raises(InputError, match="was opened without its model"):
        read_only.add(["new"])


@pytest.fixture
def connections(index):
    """() -> the number of other connections to the database, once those of earlier tests are closed."""

    def ask() -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return index._database.read(lambda session: session.ask(query))[0][0]

    gc.collect()
    time.sleep(0.5)  # the server notices later that a client has left
    return ask


def soon(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30  # a busy machine
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
def test_an_index_that_is_refused_closed_or_forgotten_has_no_connection(where, index, connections, ranker, make_ranker):
    before = connections()
    with pytest.raises(CheckpointError, match="made by another model, models/mine") as error:
        open_index(where, make_ranker("poly", seed=1))
    assert soon(lambda: connections() == before)
    assert error.traceback  # which holds the locals of `open`
    assert len(ranker.search(["hello"], where)) == 6  # by its address
    assert soon(lambda: connections() == before)
    with open_index(where, ranker) as opened:
        assert len(opened) == 6
    assert soon(lambda: connections() == before)
    gc.disable()
    try:
        opened = open_index(where, ranker)
        assert connections() == before + 1
        del opened
        assert soon(lambda: connections() == before)
    finally:
        gc.enable()


def test_a_table_of_others_is_left_alone(where):
    server = Server(where)
    with server.changing() as session:
        session.ask(f"CREATE TABLE {server.name} (a int)")
    with pytest.raises(CheckpointError, match="was not made by polyencoder"):
        open_index(where, Fingerprints("a", "b"))


def test_it_is_described(where, index):
    address, _, name = where.partition("#")
    lines = describe_index(f"{address.replace('tester@', 'tester:secret@')}?application_name=secret#{name}")
    assert lines[0] == f"{where}: 6 candidates"
    assert "secret" not in "".join(lines)
    assert lines[-1] == "search: PostgreSQL, flat: results can be certified"


@pytest.mark.parametrize(
    "where",
    [
        "postgres://u:secret@h:1/d#a-b",
        "postgres:u:secret",
        "postgresql://u:sec%zzret@h/d",
        "postgres://h/d#1",
        "postgres://u:secret/zz@h:1/d",
        "postgres://h/d?port=secret",
    ],
)
def test_addresses_that_are_none(where):
    with pytest.raises(ConfigError) as caught:
        Server(where)
    assert "secret" not in str(caught.value)
    assert "zz" not in str(caught.value)


def test_no_server_is_an_error_without_the_password():
    pytest.importorskip("psycopg", reason="pip install 'psycopg[binary]'")
    with pytest.raises(PolyencoderError, match=r"^postgres://u@127.0.0.1:1/d#polyencoder: no connection") as caught:
        open_index("postgresql://u:secret@127.0.0.1:1/d", Fingerprints("a", "b"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "kind", ["", "hnws", "hnsw,m=1", "hnsw,x=2", "flat,m=2", "hnsw,m=50,ef_construction=64", "hnsw,m=16,m=8"]
)
def test_kinds_that_are_none(kind):
    with pytest.raises(ConfigError, match="postgres|ef_construction"):
        parse_kind(kind)


def test_vectors_that_pgvector_cannot_index(where):
    with pytest.raises(ConfigError, match=r"vectors have 2,001 numbers; pgvector supports at most 2,000 with hnsw"):
        stored(where, drawn(2, 1, 2001)[0], kind="hnsw")
    vectors, contexts = drawn(5, 2, 2001)
    assert len(stored(where, vectors).search(contexts)[0]) == 5


def test_a_server_that_hangs_is_an_error_within_the_time_limit(postgres, where):
    vectors, contexts = drawn(50, 2, 8)
    index = stored(where, vectors)
    index.search(contexts)
    index._database.seconds = 0.5
    index.close()
    index.search(contexts)  # by a connection with that limit
    pids = index._read(lambda table: table.ask("SELECT pg_backend_pid()"))
    start = time.monotonic()
    os.kill(pids[0][0], signal.SIGSTOP)
    try:
        with pytest.raises(PolyencoderError, match=r"has not answered within 0.5 seconds"):
            index.search(contexts)
    finally:
        os.kill(pids[0][0], signal.SIGCONT)
    assert time.monotonic() - start < 30
    assert len(index.search(contexts)[0]) == 10


def test_a_long_statement_ends_with_a_server_that_answers_nobody(postgres, where, monkeypatch):
    """As CREATE INDEX does: it may take hours, while the server answers new connections."""
    monkeypatch.setattr(connection_module, "_CONNECT_SECONDS", 2)
    server = Server(where)
    server.seconds, slow = 0.3, "SELECT pg_sleep(%s)"
    server.read(lambda session: session.set({"statement_timeout": 0}) or session.ask(slow, (0.7,), limited=False))
    start = time.monotonic()
    os.kill(postgres.process.pid, signal.SIGSTOP)  # it accepts no connection; the one that is open works on
    try:
        with pytest.raises(PolyencoderError, match=r"has not answered within 0.3 seconds"):
            server.read(
                lambda session: session.set({"statement_timeout": 0}) or session.ask(slow, (60,), limited=False)
            )
    finally:
        os.kill(postgres.process.pid, signal.SIGCONT)
    assert time.monotonic() - start < 40


@pytest.mark.slow
def test_a_server_that_was_killed_loses_nothing(postgres, where, ranker):
    index = PostgresIndex.make(where, SAMPLE, ranker)

    def change() -> None:
        with index.changing():
            index.remove(["id 0"])
            postgres.stop(crash=True)
            postgres.start()
            index.remove(["id 1"])

    with pytest.raises(PolyencoderError, match="PostgreSQL does not answer; is the server still running"):
        change()
    assert len(index) == 6  # a lost connection of a reader is replaced
    postgres.stop(crash=True)
    try:
        with pytest.raises(PolyencoderError, match="no connection"):
            index.search(ranker.encode_contexts([["hello"]]))
    finally:
        postgres.start()
    assert len(index.search(ranker.encode_contexts([["hello"]]))[0]) == 6
    index.close()


def test_a_commit_that_hangs_is_an_error_within_the_time_limit(postgres, where, monkeypatch):
    monkeypatch.setattr(connection_module, "_LOCK_SECONDS", 0.5)
    index = stored(where, drawn(5, 1, 4)[0])
    index._database.seconds = 1
    changing = index.changing()
    changing.__enter__()
    index.remove(["0"])
    ((pid,),) = index._change.ask("SELECT pg_backend_pid()")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(PolyencoderError, match="has not answered within 1 seconds"):
            changing.__exit__(None, None, None)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_parameters_of_the_one_that_is_there_are_not_others(where, ranker):
    PostgresIndex.make(where, SAMPLE, ranker, kind="hnsw,m=8")
    with pytest.raises(ConfigError, match="exists as hnsw,ef_construction=128,m=8, not hnsw,m=12"):
        PostgresIndex.make(where, SAMPLE, ranker, kind="hnsw,m=12")
    with PostgresIndex.make(where, [Candidate("new", "new")], ranker, kind="hnsw") as index:
        assert len(index) == 7


@pytest.mark.slow
def test_any_sequence_of_changes(postgres, ranker, check_any_changes, monkeypatch):
    monkeypatch.setattr(index_module, "ROWS_AT_ONCE", 2)

    def make(first: Candidate, variant: int) -> PostgresIndex:
        kind, words = ("flat", "hnsw", "ivf-flat")[variant % 3], variant % 2 == 1
        return PostgresIndex.make(f"{postgres.address}#{next(names)}", iter([first]), ranker, kind=kind, words=words)

    check_any_changes(make, lambda index: PostgresIndex.open(index.address, ranker), examples=4, steps=8)
