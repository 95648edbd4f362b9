"""The database of an index: who reads has a snapshot, wherever the folder is from and whatever becomes of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import polyencoder.index.folder.change as change_module
import polyencoder.index.folder.verify as verify_module
from polyencoder.errors import CheckpointError, InputError
from polyencoder.index import Candidate, FolderIndex, build_index, verify
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.change import Change
from polyencoder.index.folder.database import Database, connect
from polyencoder.index.folder.files import DATABASE, UNFINISHED, IndexBusy, locked, remove_index
from polyencoder.index.folder.state import State
from polyencoder.index.meta import Fingerprints

pytestmark = pytest.mark.slow


def make_others(n: int) -> list[Candidate]:
    return [Candidate(f"other {i}", f"another text {i}") for i in range(n)]


class TestReading:
    def test_a_snapshot_stays(self, index, folder):
        database = Database(folder)
        with database.snapshot() as before:
            index.remove(["0"])
            index.compact()
            assert before.count() == 10
            with database.snapshot() as now:
                assert now.count() == 9
        with database.snapshot() as now:
            assert now.count() == 9

    def test_an_index_that_is_built_anew_in_its_place(self, index, folder, ranker, candidates, contexts, assert_finds):
        """A server has the index open meanwhile. Nothing of the old index passes for the new one's."""
        pytest.importorskip("faiss")
        index.build_faiss("ivf-flat", nlist=1)
        assert {hit.found for hits in index.search(contexts, exactness="certified") for hit in hits} == {"certified"}
        remove_index(folder)
        assert len(index.search(contexts, top_k=10)[0]) == 10  # until there is another one
        new = make_others(10)
        build_index(folder, new, ranker, shard_size=3)
        FolderIndex.open(folder, ranker).build_faiss("ivf-flat", nlist=1)
        (hits, _) = index.search(contexts, exactness="certified")
        (exact, _) = index.search(contexts, exactness="exact")
        assert [(hit.id, round(hit.score, 4)) for hit in hits] == [(hit.id, round(hit.score, 4)) for hit in exact]
        assert {hit.id for hit in hits} == {candidate.id for candidate in new}

    def test_a_process_that_was_forked(self, index, folder, ranker, contexts):
        """The new process opens new connections, and other processes find its changes."""
        index.search(contexts)
        if (child := os.fork()) == 0:
            try:
                index.add(make_others(2))
                os._exit(len(index) - 12)
            except BaseException:
                os._exit(99)
        assert os.waitpid(child, 0)[1] == 0
        assert len(index) == 12
        verify(folder)

    def test_a_process_that_goes_elsewhere(self, folder, ranker, monkeypatch, candidates, assert_finds, tmp_path):
        monkeypatch.chdir(folder.parent)
        index = FolderIndex.open(folder.name, ranker)
        monkeypatch.chdir("/")
        index.add([new := Candidate("new", "a new one")])
        assert_finds(index, ranker, [*candidates, new])

    def test_a_filter_is_asked_once(self, index, contexts, monkeypatch):
        first = index.search(contexts, filter={"even": True})
        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "select_allowed", lambda *_: pytest.fail("asked again"))
            assert index.search(contexts, filter={"even": True}) == first
            assert index.count_texts({"even": True}) == 4
        assert index.count({"even": True}) == 4
        index.remove(["0"])
        assert index.count({"even": True}) == 3

    @pytest.mark.parametrize("name", ["file:x?mode=memory", "a b%41#c", "ü"])
    def test_names_of_folders(self, folder, ranker, name, candidates, assert_finds):
        folder = folder.rename(folder.parent / name)
        index = FolderIndex.open(folder, ranker)
        index.remove(["3"])
        index.compact()
        assert_finds(index, ranker, [candidate for candidate in candidates if candidate.id != "3"])

    def test_a_log_that_is_removed_meanwhile(self, folder, monkeypatch):
        """The last process that has the index open removes the log when it ends."""
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: path.name == f"{DATABASE}-wal" or exists(path))
        assert not (folder / f"{DATABASE}-shm").exists()
        with Database(folder).snapshot() as catalogue:
            assert catalogue.count() == 10


AS_NOBODY = """
import os, sys
from pathlib import Path
from polyencoder.index import verify
from polyencoder.index.folder.database import Database
os.setuid(65534)
folder = Path(sys.argv[1])
with Database(folder).snapshot() as catalogue:
    print(catalogue.count())
verify(folder)
"""


@pytest.mark.usefixtures("forked_commands")
class TestWhoCannotWrite:
    def run(self, folder) -> str:
        if os.getuid() != 0:
            pytest.skip("needs the right to become another user")
        with tempfile.TemporaryDirectory() as parent:  # pytest's are its user's alone
            os.chmod(parent, 0o755)
            os.rename(folder, moved := Path(parent) / "index")
            command = [sys.executable, "-c", AS_NOBODY, moved]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            os.rename(moved, folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def test_an_index_at_rest(self, folder, index):
        index.remove(["0"])
        index.close()
        assert self.run(folder) == "9"
        for path in folder.glob("index.sqlite-*"):
            path.unlink()
        assert self.run(folder) == "9"
        assert not list(folder.glob("index.sqlite-*"))

    def test_an_index_that_another_user_changes(self, folder, ranker):
        with closing(connect(folder / DATABASE)) as connection:
            connection.execute("DELETE FROM entries WHERE id = '0'")  # which is in the log alone
            connection.execute("DELETE FROM fields WHERE entry NOT IN (SELECT number FROM entries)")
            assert self.run(folder) == "9"


class TestFromElsewhere:
    def test_a_journal_that_names_another_file(self, folder, ranker, index, tmp_path):
        """SQLite replays a journal that it finds, and deletes the one that this says it is a part of."""
        victim = tmp_path / "victim"
        victim.write_text("important")
        name = str(victim).encode()
        magic = bytes.fromhex("d9d505f920a163d7")
        record = (1).to_bytes(4, "big") + name + len(name).to_bytes(4, "big")
        record += (sum(name) & 0xFFFFFFFF).to_bytes(4, "big") + magic
        header = magic + b"\0" * 4 + b"\0" * 4 + (10).to_bytes(4, "big") + (512).to_bytes(4, "big")
        header += (4096).to_bytes(4, "big")
        (folder / f"{DATABASE}-journal").write_bytes(header.ljust(512, b"\0") + record)
        for use in (lambda: FolderIndex.open(folder, ranker), lambda: verify(folder), lambda: Change(folder, ranker)):
            with pytest.raises(CheckpointError, match="index.sqlite-journal: an index never has such a file"):
                use()
        assert victim.exists()

    @pytest.mark.parametrize("end", ["-wal", "-shm"])
    def test_a_log_that_is_elsewhere(self, folder, ranker, tmp_path, end):
        victim = tmp_path / "victim"
        victim.write_text("important")
        (folder / f"{DATABASE}{end}").symlink_to(victim)
        with pytest.raises(CheckpointError, match=f"index.sqlite{end}: an index never has such a file"):
            FolderIndex.open(folder, ranker)
        assert victim.read_text() == "important"

    def test_a_link_in_place_of_a_file(self, folder, index, tmp_path, contexts):
        """The index is searched, but neither a change nor a build writes to the link's target."""
        victim = tmp_path / "victim"
        (folder / "meta.json").rename(victim)
        before = victim.read_bytes()
        (folder / "meta.json").symlink_to(victim)
        with pytest.raises(InputError, match="meta.json is a symbolic link"):
            index.add(["a new one"])
        index.search(contexts)
        assert victim.read_bytes() == before

    def test_a_build_over_links(self, folder, ranker, candidates, tmp_path):
        (folder / DATABASE).rename(folder / UNFINISHED)  # as crafted
        victim = tmp_path / "victim"
        (folder / "meta.json").rename(victim)
        before = victim.read_bytes()
        (folder / "meta.json").symlink_to(victim)
        with pytest.raises(InputError, match="meta.json is a symbolic link"):
            build_index(folder, candidates, ranker, shard_size=3)
        assert victim.read_bytes() == before

    @pytest.mark.parametrize("change", ["name = NULL", "bytes = 'x'", "rows = 'x'", "name = x'00'"])
    def test_a_list_of_files_that_is_none(self, folder, ranker, change):
        with closing(connect(folder / DATABASE)) as connection:
            connection.execute(f"UPDATE OR REPLACE files SET {change}")
        with pytest.raises(CheckpointError, match="its list of files is invalid"):
            FolderIndex.open(folder, ranker)


class TestChanging:
    def test_a_compaction_that_fails_and_is_caught(self, index, ranker, candidates, assert_finds, monkeypatch):
        """The rest of the change is made, with the rows as they were."""
        with index.changing():
            index.remove(["2"])
            with monkeypatch.context() as patch:
                patch.setattr("polyencoder.index.folder.change.write_vectors", lambda *_, **__: full())
                with pytest.raises(InputError, match="cannot be written"):
                    index.compact()
            index.add([new := Candidate("new", "a new one")])
        assert_finds(index, ranker, [*(candidate for candidate in candidates if candidate.id != "2"), new])
        verify(index.folder)

    def test_what_sqlite_has_undone_is_not_published(self, index, ranker, candidates, assert_finds, monkeypatch):
        """A full disk may end the whole transaction. What comes after that would be changed without one."""

        def change() -> None:
            with index.changing():
                index.remove(["2"])
                with pytest.raises(InputError, match="cannot be written .*disk is full"):
                    index.add(fail())
                with pytest.raises(InputError, match="this change has failed and was undone"):
                    index.remove(["3"])

        def fail():
            yield Candidate("new", "a new one")
            index._change._connection.execute("ROLLBACK")
            monkeypatch.setattr("polyencoder.index.folder.catalogue.Catalogue.put", lambda *_, **__: full_database())
            yield Candidate("newer", "a newer one")

        version = index.meta.version
        with pytest.raises(InputError, match="this change has failed and was undone"):
            change()
        assert_finds(index, ranker, candidates)
        assert index.meta.version == version

    def test_an_error_of_the_callers_own_files(self, index, ranker, candidates, assert_finds):
        def read():
            yield Candidate("new", "a new one")
            raise FileNotFoundError("mine.txt")

        with pytest.raises(FileNotFoundError, match=r"^mine.txt$"):
            index.add(read())
        with pytest.raises(FileNotFoundError, match=r"^mine.txt$"):
            build_index(index.folder.parent / "other", read(), ranker)
        assert_finds(index, ranker, candidates)

    def test_a_build_has_the_lock(self, tmp_path, ranker, candidates, monkeypatch):
        monkeypatch.setattr("polyencoder.index.folder.files._BUSY_SECONDS", 0.05)
        (tmp_path / "new").mkdir()
        with locked(tmp_path / "new"), pytest.raises(IndexBusy, match="is another process at it"):
            build_index(tmp_path / "new", candidates, ranker)
        build_index(tmp_path / "new", candidates, ranker)
        index = FolderIndex.open(tmp_path / "new", Fingerprints.of(ranker))
        with index.changing(), pytest.raises(IndexBusy):
            remove_index(tmp_path / "new")
        remove_index(tmp_path / "new")

    def test_an_index_that_was_removed(self, index, folder):
        remove_index(folder)
        with pytest.raises(CheckpointError, match="no index"):
            index.remove(["0"])
        assert not folder.exists()

    def test_removed_through_a_link(self, folder, tmp_path):
        (tmp_path / "link").symlink_to(folder)
        remove_index(tmp_path / "link")
        assert not folder.exists()
        assert not (tmp_path / "link").is_symlink()


class TestVerify:
    def test_a_whole_one(self, index, folder, capsys):
        index.add(make_others(5))
        verify(folder, progress=True)
        assert "checking: 100%" in capsys.readouterr().err

    @pytest.mark.parametrize("pattern", ["vectors-000000000003-????????????????.npy", "faiss-*.index"])
    def test_a_flipped_bit(self, index, folder, pattern):
        pytest.importorskip("faiss")
        index.build_faiss("ivf-flat", nlist=1)
        (path,) = folder.glob(pattern)
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=f"{path.name}: damaged, its checksum has changed"):
            verify(folder)

    def test_a_flipped_bit_of_a_text(self, folder):
        with closing(sqlite3.connect(folder / DATABASE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = (folder / DATABASE).read_bytes()
        assert b"two dogs" in data
        (folder / DATABASE).write_bytes(data.replace(b"two dogs", b"two logs"))
        with pytest.raises(CheckpointError, match="index.sqlite: damaged .text . was altered"):
            verify(folder)

    def test_a_name_in_its_schema_that_is_no_text(self, folder):
        with closing(sqlite3.connect(folder / DATABASE)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            values = "('view', CAST(x'b3' AS TEXT), 'v', 0, 'CREATE VIEW v AS SELECT 1')"
            connection.execute(f"INSERT INTO sqlite_master(type, name, tbl_name, rootpage, sql) VALUES {values}")
            connection.commit()
        with pytest.raises(CheckpointError, match=r"index.sqlite: damaged or not readable \(.*utf-8"):
            verify(folder)

    def test_damaged_pages(self, folder):
        """What SQLite says of them has several lines."""
        with closing(sqlite3.connect(folder / DATABASE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        data = bytearray((folder / DATABASE).read_bytes())
        offset = (root - 1) * size + 8  # the offsets of a page's first two cells
        data[offset : offset + 4] = data[offset + 2 : offset + 4] + data[offset : offset + 2]
        (folder / DATABASE).write_bytes(data)
        with pytest.raises(CheckpointError, match="index.sqlite: damaged .*out of order") as error:
            verify(folder)
        assert len(str(error.value).splitlines()) == 1

    def test_beside_a_change_that_removes_files(self, index, folder, monkeypatch):
        changes = iter([lambda: index.remove(["0", "twin 0"]), index.compact])

        def state(*args):
            for change in changes:
                change()
            return State(*args)

        monkeypatch.setattr(verify_module, "State", state)
        before = {path.name for path in folder.glob("vectors-*")}
        verify(folder)
        assert before - {path.name for path in folder.glob("vectors-*")}

    def test_a_file_that_went_and_came_back(self, index, folder, monkeypatch):
        """Between the check of the file and the listing of the names."""
        missing = iter([True])

        def checksum(path, **options):
            if next(missing, False):
                raise FileNotFoundError(path)
            return change_module.compute_checksum(path, **options)

        monkeypatch.setattr(verify_module, "compute_checksum", checksum)
        verify(folder)


def full() -> None:
    raise OSError(28, "no room")


def full_database() -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_folder_that_was_copied(folder, index, ranker, tmp_path, candidates, assert_finds):
    """With the log of SQLite, whatever it holds."""
    with closing(connect(folder / DATABASE)) as connection:
        connection.execute("UPDATE entries SET metadata = NULL WHERE id = '7'")
        shutil.copytree(folder, tmp_path / "copy")
    changed = [candidate if candidate.id != "7" else candidate._replace(metadata=None) for candidate in candidates]
    assert_finds(FolderIndex.open(Path(tmp_path / "copy"), ranker), ranker, changed)
