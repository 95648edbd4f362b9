"""Archives that try to write outside their folder, and damaged ones."""

from __future__ import annotations

import gzip
import random
import tarfile

import pytest
from parlai.zoo.polyencoder.unpack import unpack

from polyencoder.errors import CheckpointError


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def place(tmp_path):
    """An empty folder, with a file beside it that nothing may change."""
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_files_and_folders(place, pack, tree):
    archive = place.parent / "archive.tgz"
    members = {"./a/model": b"weights", "b/c/model.opt": b"{}", "b/empty": special(tarfile.DIRTYPE), "..odd": b"fine"}
    archive.write_bytes(pack(members))
    unpack(archive, place)
    assert tree(place) == ["..odd", "a/model", "b/c/model.opt"]
    assert (place / "a/model").read_bytes() == b"weights"
    assert (place / "b/empty").is_dir()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("../victim", b"evil", "leave the folder"),
        ("a/../../victim", b"evil", "leave the folder"),
        ("..\\victim", b"evil", "leave the folder"),
        ("/{root}/victim", b"evil", "leave the folder"),
        ("C:victim", b"evil", "leave the folder"),
        ("../elsewhere", special(tarfile.DIRTYPE), "leave the folder"),
        ("link", special(tarfile.SYMTYPE, "../victim"), "a link or a device"),
        ("link", special(tarfile.SYMTYPE, "good"), "a link or a device"),
        ("link", special(tarfile.LNKTYPE, "../victim"), "a link or a device"),
        ("pipe", special(tarfile.FIFOTYPE), "a link or a device"),
        ("device", special(tarfile.CHRTYPE), "a link or a device"),
    ],
)
def test_nothing_leaves_the_folder(name, content, reason, place, pack, tree):
    name = name.replace("/{root}", str(place.parent))
    archive = place.parent / "archive.tgz"
    archive.write_bytes(pack({"good": b"1", name: content, "link/victim": b"evil"}))
    with pytest.raises(CheckpointError, match=reason):
        unpack(archive, place)
    assert tree(place.parent) == ["archive.tgz", "folder/good", "victim"]
    assert (place.parent / "victim").read_text() == "as it was"
    assert not (place.parent / "elsewhere").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "last byte", "empty", "no archive", "no gzip"])
def test_damaged(damage, place, pack):
    data = pack({"a": random.Random(0).randbytes(50_000), "b": b"2"})
    broken = {
        "cut": data[: len(data) // 2],
        "flipped": data[:25_000] + bytes([data[25_000] ^ 1]) + data[25_001:],
        "last byte": data[:-1],
        "empty": b"",
        "no archive": b"<html>not found</html>",
        "no gzip": gzip.decompress(data),
    }
    archive = place.parent / "archive.tgz"
    archive.write_bytes(broken[damage])
    with pytest.raises(CheckpointError, match=r"archive\.tgz: damaged, or not a \.tgz archive"):
        unpack(archive, place)
