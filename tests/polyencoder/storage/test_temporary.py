"""Temporary folders: gone with their process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polyencoder.storage.temporary import TemporaryFolder

CODE = """
import sys
from polyencoder.storage.temporary import TemporaryFolder
folder = TemporaryFolder()
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """The system's folder of temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def start():
    """() -> a process that has a temporary folder, and its path."""
    processes = []

    def begin() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process, Path(process.stdout.readline().strip())

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_a_later_start_removes_what_a_killed_process_left(start, place):
    (killed, left), (_, used) = start(), start()
    killed.kill()
    killed.wait()
    age(left)
    age(used)
    (other := place / "polyencoder-mine").mkdir()  # of somebody else, without a lock
    age(other)
    with TemporaryFolder() as folder:
        assert set(place.iterdir()) == {used, other, Path(folder)}
    assert set(place.iterdir()) == {used, other}


def test_sigterm_removes_its_own(start, place):
    process, folder = start()
    assert folder.is_dir()
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    assert list(place.iterdir()) == []


def test_the_end_of_a_process_removes_its_own(start, place):
    process, _ = start()
    process.communicate("")
    assert list(place.iterdir()) == []


def test_a_handler_of_the_program_stays(place):
    def mine(*_):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with TemporaryFolder():
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_child_leaves_its_parents_folder(place):
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with TemporaryFolder() as folder:
            if (child := os.fork()) == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            assert Path(folder).is_dir()
    finally:
        signal.signal(signal.SIGTERM, before)
