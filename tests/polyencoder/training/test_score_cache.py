"""The file of a teacher's scores: kept through kills, shared by processes, refused when it is something else."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from polyencoder import CheckpointError
from polyencoder.training.score_cache import ScoreCache

pytestmark = pytest.mark.slow

WRITER = """
import sys
from polyencoder.training.score_cache import ScoreCache
cache = ScoreCache(sys.argv[1])
for step in range(1, 1 << 30):
    cache.put({i.to_bytes(16, "big"): float(i) for i in range(100 * step, 100 * step + 100)})
    print(step, flush=True)
"""


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "teacher.sqlite"


def test_what_was_put_is_there(path):
    cache = ScoreCache(path)
    cache.put({key(i): i / 3 for i in range(25_000)})
    cache.put({key(7): 1.0, key(25_000): -5.5})
    assert cache.get([key(7), key(25_000), key(99_999)]) == {key(7): 7 / 3, key(25_000): -5.5}
    cache.close()
    again = ScoreCache(path)
    assert len(again) == 25_001
    assert again.get([key(i) for i in range(30_000)]) == {**{key(i): i / 3 for i in range(25_000)}, key(25_000): -5.5}


def test_in_memory_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = ScoreCache(None)
    cache.put({key(1): 2.0})
    assert cache.get([key(1)]) == {key(1): 2.0}
    assert os.listdir(tmp_path) == []


def test_a_file_that_another_process_creates_meanwhile(path, monkeypatch):
    connect = sqlite3.connect

    class Slow(sqlite3.Connection):
        def execute(self, *arguments):
            rows = super().execute(*arguments).fetchall()
            monkeypatch.setattr(sqlite3, "connect", connect)
            ScoreCache(path).close()
            return rows

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Slow))
    assert len(ScoreCache(path)) == 0


def test_two_at_once(path):
    first, second = ScoreCache(path), ScoreCache(path)
    first.put({key(1): 1.0})
    second.put({key(2): 2.0})
    assert first.get([key(1), key(2)]) == second.get([key(1), key(2)]) == {key(1): 1.0, key(2): 2.0}


def test_all_of_a_call_or_nothing(path):
    cache = ScoreCache(path)
    with pytest.raises(CheckpointError, match="cannot be read or written"):
        cache.put({key(1): 1.0, key(2): object()})
    assert len(cache) == 0
    cache.put({key(3): 3.0})
    assert len(cache) == 1


@pytest.mark.usefixtures("forked_commands")
def test_a_writer_that_is_killed_loses_nothing_that_it_had_put(path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
    put = [int(process.stdout.readline()) for _ in range(5)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    cache = ScoreCache(path)
    known = len(cache)
    assert known >= 100 * put
    assert known % 100 == 0
    assert len(cache.get([key(i) for i in range(100, 100 + known)])) == known


def test_files_that_are_something_else(path):
    path.parent.mkdir()
    path.write_text("a diary, which nobody wants to be overwritten\n" * 50)
    with pytest.raises(CheckpointError, match="teacher.sqlite: teacher's scores cannot be read .*not a database"):
        ScoreCache(path)
    assert path.read_text().startswith("a diary")
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine(x)")
    with pytest.raises(CheckpointError, match="not a cache of teacher's scores of format 1"):
        ScoreCache(path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be read or written"):
        ScoreCache(tmp_path / "file" / "teacher.sqlite")
