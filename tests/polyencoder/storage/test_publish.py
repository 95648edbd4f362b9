"""Several files that are published together: whatever stops it, and where, all are the old ones or all the new ones."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError
from polyencoder.storage.publish import discard_unfinished, finish_publication, is_published, publishing
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

OLD = {"config": "old", "weights": "old weights", "card": "old card", "mine": "stays"}
OLD |= {"tower/weights": "old tower", "a/dense/weights": "old layer", "both/mine": "stays", "both/theirs": "goes"}
NEW = {"config": "new", "weights": "new weights", "mine": "stays", "both/mine": "stays"}
NEW |= {"tower/weights": "new tower", "b/dense/weights": "new layer"}
WRITTEN = ("config", "weights", "tower/weights", "b/dense/weights")
REMOVED = ["card", "weights", "not there", "a/dense/weights", "both/theirs", "no folder/either"]
CALLS = {"open", "fcntl.flock", "test.fsync"} | {
    f"os.{name}" for name in ("mkdir", "rename", "remove", "rmdir", "chmod")
}


class Calls:
    """Counts the system calls that Python announces to audit hooks, and acts at one of them."""

    def __init__(self) -> None:
        self.count, self.at, self.act = 0, -1, None
        self._thread: int | None = None
        sys.addaudithook(self._hook)  # for the life of the process; asleep outside of `run`

    def _hook(self, event: str, _: object) -> None:
        if threading.get_ident() == self._thread and event in CALLS:
            self.count += 1
            if self.count == self.at:
                self.act()

    def run(self, function, *, at: int = -1, act=None) -> int:
        """The number of calls of a function, which `act` stops at one of them."""
        self.count, self.at, self.act, self._thread = 0, at, act, threading.get_ident()
        try:
            function()
        except (KeyboardInterrupt, OSError, CheckpointError):
            assert act is not None
        finally:
            self._thread = None
        return self.count


CALLS_MADE = Calls()


@pytest.fixture(autouse=True)
def announced_fsync(monkeypatch) -> None:
    fsync = os.fsync

    def announce(handle: int) -> None:
        sys.audit("test.fsync")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", announce)


@pytest.fixture
def folder(tmp_path) -> Path:
    write(tmp_path / "model", OLD)
    return tmp_path / "model"


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(folder: Path) -> dict[str, str]:
    """The text of each visible file in the folder and below; "empty" for an empty folder."""
    paths = [path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir())]
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    return {
        name: path.read_text() if path.is_file() else "empty"
        for path, name in names.items()
        if f"/{name}".find("/.") < 0
    }


def publish(folder: Path) -> None:
    with publishing(folder, remove=REMOVED) as staging:
        write(staging, {name: NEW[name] for name in WRITTEN})


def interrupt() -> None:
    raise KeyboardInterrupt


def fill_the_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def check(folder: Path) -> str:
    """All files are old or new, and the next publication leaves nothing else behind."""
    finish_publication(folder)
    files = read(folder)
    assert files in (OLD, NEW)
    publish(folder)
    assert {path.name for path in folder.iterdir()} == {name.partition("/")[0] for name in NEW}
    assert read(folder) == NEW
    return files["config"]


@mostly_long("act", [interrupt, fill_the_disk], quick=1)
def test_an_error_at_each_system_call(folder, act):
    calls, seen = CALLS_MADE.run(lambda: publish(folder)), set[str]()
    assert calls > 20
    for at in range(1, calls + 1):
        shutil.rmtree(folder)
        write(folder, OLD)
        CALLS_MADE.run(lambda: publish(folder), at=at, act=act)
        seen.add(check(folder))
    assert seen == {"old", "new"}


@mostly_long("first", [1, 5, 2, 3, 4, 6, 7, 8], quick=2)
def test_a_kill_at_every_eighth_system_call(folder, first):
    calls, seen = CALLS_MADE.run(lambda: publish(folder)), set[str]()
    for at in range(first, calls + 1, 8):
        shutil.rmtree(folder)
        write(folder, OLD)
        if (child := os.fork()) == 0:
            CALLS_MADE.run(lambda: publish(folder), at=at, act=lambda: os._exit(9))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        seen.add(check(folder))
    assert seen == {"old", "new"}


def test_a_folder_that_was_not_there_is_not_left_empty(tmp_path):
    for at in range(1, 12):  # before anything is published
        CALLS_MADE.run(lambda: publish(tmp_path / "deep" / "model"), at=at, act=interrupt)
        assert list(tmp_path.iterdir()) == []
    publish(tmp_path / "deep" / "model")
    assert read(tmp_path / "deep" / "model") == {name: NEW[name] for name in WRITTEN}


def test_permissions_are_those_of_the_old_files_or_of_new_ones(folder):
    (folder / "weights").chmod(0o640)
    (folder / "config").unlink()
    with publishing(folder) as staging:
        write(staging, {"weights": "new", "config": "new"})
        (staging / "config").chmod(0o600)  # as libraries write files
    (folder / "other").touch()
    modes = [(folder / name).stat().st_mode for name in ("weights", "config", "other")]
    assert modes[0] & 0o777 == 0o640
    assert modes[1] == modes[2]


def test_what_a_living_process_writes_stays(folder):
    with publishing(folder) as first:
        write(first, {"config": "first"})
        publish(folder)
        discard_unfinished(folder)
        assert read(folder) == NEW
        assert first.is_dir()
    assert read(folder) == NEW | {"config": "first"}
    assert {*os.listdir(folder)} == {name.partition("/")[0] for name in NEW}


def test_a_check_that_fails_changes_nothing(folder):
    def check() -> None:
        raise FileExistsError

    with pytest.raises(FileExistsError), publishing(folder, remove=["card"], check=check) as staging:
        write(staging, {"config": "new"})
    assert read(folder) == OLD
    assert {*os.listdir(folder)} == {name.partition("/")[0] for name in OLD}


@pytest.mark.parametrize("link", [".polyencoder.published", ".polyencoder.0123456789abcdef.part"])
def test_a_model_of_others_moves_no_files_of_mine(folder, tmp_path, link):
    """A folder may come from anywhere, with links in it."""
    write(tmp_path / "mine", {"thesis": "years", ".lock": ""})
    (folder / link).symlink_to(tmp_path / "mine")
    finish_publication(folder)
    discard_unfinished(folder)
    assert read(tmp_path / "mine") == {"thesis": "years"}
    assert read(folder) == OLD
    (folder / link).unlink()
    (folder / link).mkdir()
    (folder / link / ".removed").symlink_to(tmp_path / "mine")
    discard_unfinished(folder)
    assert read(tmp_path / "mine") == {"thesis": "years"}


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_publication_that_cannot_be_finished_says_so(folder):
    (folder / ".polyencoder.published").mkdir()
    folder.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="make the folder writable"):
            finish_publication(folder)
        assert is_published(folder)
    finally:
        folder.chmod(0o700)
