"""Temporary folders: gone with their process, however that ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polyencoder.index.open import open_index
from polyencoder.storage.temporary import TemporaryFolder

pytestmark = pytest.mark.slow

CODE = """
import sys
from polyencoder.index.open import open_index
from polyencoder.storage.temporary import TemporaryFolder
folder = TemporaryFolder()
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch) -> Path:
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


def inside(base: Path) -> set[Path]:
    """What is in the folder of temporary folders."""
    return {*(base / f".polyencoder-{os.getuid()}").iterdir()}


def test_a_later_start_removes_what_a_killed_process_left(start, base):
    (killed, left), (_, used) = start(), start()
    assert inside(base) == {left, used}
    killed.kill()
    killed.wait()
    with TemporaryFolder() as folder:
        assert inside(base) == {used, Path(folder)}
    assert inside(base) == {used}


def test_folders_that_people_named_stay(start, base, make_ranker):
    """An index has a free lock of its own, wherever it is and however old, and whatever it is named."""
    ranker = make_ranker("bi")
    with TemporaryFolder():  # makes the folder of them
        parents = [base, base / f".polyencoder-{os.getuid()}"]
    for parent in parents:
        ranker.index(["yes", "no"], parent / "polyencoder-replies").close()
        (parent / "polyencoder-mine").mkdir()
    killed, left = start()
    killed.kill()
    killed.wait()
    shutil.copytree(left, copy := left.with_name("copy"))  # with the mark of another folder
    for path in base.rglob("*"):
        os.utime(path, (0, 0))
    with TemporaryFolder():
        assert not left.exists()
    assert copy.exists()
    for parent in parents:
        assert (parent / "polyencoder-mine").exists()
        with open_index(parent / "polyencoder-replies", ranker) as index:
            assert len(index) == 2


def test_another_users_folder_is_not_used(base):
    (base / f".polyencoder-{os.getuid()}").symlink_to(base)
    with TemporaryFolder() as folder:
        assert Path(folder).parent == base
        with TemporaryFolder() as other:
            assert {Path(folder), Path(other)} < {*base.iterdir()}


def test_the_end_of_a_process_removes_its_own(start, base):
    process, _ = start()
    process.communicate("")
    assert inside(base) == set()
