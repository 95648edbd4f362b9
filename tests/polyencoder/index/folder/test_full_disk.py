"""An index folder on a disk without room."""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index import FolderIndex, build_index, verify
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.database import Database, connect
from polyencoder.index.folder.files import DATABASE, wrap_io_errors


@contextmanager
def full_disk() -> Iterator[None]:
    """No file grows in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestAFullDisk:
    """SQLite has no room for the index of its log, which nobody has left there."""

    @pytest.fixture(autouse=True)
    def nobody_has_it_open(self, folder):
        assert not list(folder.glob("index.sqlite-*"))

    def test_is_read(self, folder, ranker, candidates, assert_finds):
        with full_disk():
            verify(folder)
            assert_finds(FolderIndex.open(folder, ranker), ranker, candidates)

    def test_a_log_that_cannot_be_read_is_no_damage(self, folder, ranker):
        with closing(connect(folder / DATABASE)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("DELETE FROM entries WHERE id = '0'")
            shutil.copytree(folder, copy := folder.with_name("copy"), ignore=shutil.ignore_patterns("*-shm"))
        with (
            full_disk(),
            pytest.raises(CheckpointError, match=r"cannot be read \(.*\); if its disk is full or read-only"),
        ):
            FolderIndex.open(copy, ranker)
        with Database(copy).snapshot() as catalogue:
            assert catalogue.count() == 9

    def test_is_named_where_sqlite_does_not(self, folder, monkeypatch):
        free = shutil.disk_usage(folder)._replace(free=100)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"), wrap_io_errors(folder):
            raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("successes", [0, 1])
def test_an_error_of_a_read_in_a_build_is_explained(tmp_path, ranker, monkeypatch, successes):
    rows, calls = Catalogue.rows.fget, []

    def fail(catalogue):
        calls.append(catalogue)
        if len(calls) > successes:
            raise sqlite3.OperationalError("disk I/O error")
        return rows(catalogue)

    monkeypatch.setattr(Catalogue, "rows", property(fail))
    with pytest.raises(InputError, match="cannot be written"):
        build_index(tmp_path / "index", ["hello"], ranker)
    assert not (tmp_path / "index" / DATABASE).exists()
