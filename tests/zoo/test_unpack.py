"""Archives that try to write outside their folder, and damaged ones."""

from __future__ import annotations

import gzip
import random
import resource
import tarfile

import pytest
from parlai.zoo.polyencoder import unpack as unpacking
from parlai.zoo.polyencoder.unpack import unpack

from polyencoder.errors import CheckpointError


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def folder(tmp_path):
    """An empty folder, with a file beside it that nothing may change."""
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_files_and_folders(folder, pack, tree):
    archive = folder.parent / "archive.tgz"
    members = {"./a/model": b"weights", "b/c/model.opt": b"{}", "b/empty": special(tarfile.DIRTYPE), "..odd": b"fine"}
    archive.write_bytes(pack(members))
    unpack(archive, folder)
    assert tree(folder) == ["..odd", "a/model", "b/c/model.opt"]
    assert (folder / "a/model").read_bytes() == b"weights"
    assert (folder / "b/empty").is_dir()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("../victim", b"evil", "outside the destination"),
        ("a/../../victim", b"evil", "outside the destination"),
        ("../elsewhere", special(tarfile.DIRTYPE), "outside the destination"),
        ("link", special(tarfile.SYMTYPE, "../victim"), "a link or a device"),
        ("link", special(tarfile.LNKTYPE, "../victim"), "a link or a device"),
        ("device", special(tarfile.CHRTYPE), "a link or a device"),
    ],
)
def test_nothing_leaves_the_folder(name, content, reason, folder, pack, tree):
    archive = folder.parent / "archive.tgz"
    archive.write_bytes(pack({"good": b"1", name: content, "link/victim": b"evil"}))
    with pytest.raises(CheckpointError, match=reason):
        unpack(archive, folder)
    assert tree(folder.parent) == ["archive.tgz", "victim"]
    assert (folder.parent / "victim").read_text() == "as it was"
    assert not (folder.parent / "elsewhere").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "last byte", "empty", "no archive", "no gzip"])
def test_damaged(damage, folder, pack):
    data = pack({"a": random.Random(0).randbytes(50_000), "b": b"2"})
    broken = {
        "cut": data[: len(data) // 2],
        "flipped": data[:25_000] + bytes([data[25_000] ^ 1]) + data[25_001:],
        "last byte": data[:-1],
        "empty": b"",
        "no archive": b"<html>not found</html>",
        "no gzip": gzip.decompress(data),
    }
    archive = folder.parent / "archive.tgz"
    archive.write_bytes(broken[damage])
    with pytest.raises(CheckpointError, match=r"archive\.tgz: damaged, or not a \.tgz archive"):
        unpack(archive, folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *[("a" * 256, {}), ("/".join(["a" * 100] * 60), {}), ("", {}), ("good/model", {}), ("a", {"path": "a\0b"})],
        *[("a", {"mtime": "inf"}), ("a", {"mtime": "nan"})],
    ],
)
def test_names_and_times_that_cannot_be(name, fields, folder, pack):
    """The caller then removes the archive, as for other damage: a full disk would keep it for the next run."""
    odd = special(tarfile.REGTYPE)
    odd.pax_headers = fields
    archive = folder.parent / "archive.tgz"
    archive.write_bytes(pack({"good": b"1", name: odd}))
    with pytest.raises(CheckpointError, match=r"archive\.tgz: damaged, or not a \.tgz archive"):
        unpack(archive, folder)
    assert not list(folder.iterdir())


def bomb(path, members):
    """Members of so many zeros, `(name, size)`, which compress to nothing."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf())
            for _ in range(size // tarfile.RECORDSIZE + 1):
                file.write(bytes(tarfile.RECORDSIZE))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("large", 300_000)], r"holds more than \d\d,\d\d\d bytes"),
        ([(f"part{i}", 8_000) for i in range(20)], r"holds more than \d\d,\d\d\d bytes"),
    ],
)
def test_too_large(members, reason, folder, monkeypatch):
    monkeypatch.setattr(unpacking, "ROOM", 50_000)
    archive = folder.parent / "archive.tgz"
    bomb(archive, members)
    with pytest.raises(CheckpointError, match=reason):
        unpack(archive, folder)
    assert not list(folder.iterdir())


def test_a_header_too_large(folder, monkeypatch):
    """The text of an extended header would be read at once, whatever it says its size is."""
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    archive = folder.parent / "archive.tgz"
    archive.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)))
    with pytest.raises(CheckpointError, match="holds more than"):
        unpack(archive, folder)


def test_a_sparse_file_too_large(folder, monkeypatch):
    """The holes of the file are not in the archive."""
    info = tarfile.TarInfo("hole")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40), "GNU.sparse.name": "hole"}
    info.pax_headers |= {"GNU.sparse.numblocks": "1"}
    archive = folder.parent / "archive.tgz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(CheckpointError, match="holds more than"):
        unpack(archive, folder)
    assert not list(folder.iterdir())


def test_too_many_members(folder, pack, monkeypatch):
    monkeypatch.setattr(unpacking, "MEMBERS", 5)
    archive = folder.parent / "archive.tgz"
    archive.write_bytes(pack({f"file{i}": b"1" for i in range(6)}))
    with pytest.raises(CheckpointError, match="more than 5 members"):
        unpack(archive, folder)
    assert not list(folder.iterdir())


def test_a_full_disk(folder, pack):
    """The error is the system's: the archive is as good as before."""
    archive = folder.parent / "archive.tgz"
    archive.write_bytes(pack({"a": b"1", "b": b"2" * 100_000}))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            unpack(archive, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(folder.iterdir())
