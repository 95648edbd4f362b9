"""Downloads that break off, over a real connection to a local server."""

from __future__ import annotations

import hashlib
import random

import pytest
from parlai.zoo.polyencoder.fetch import fetch

from polyencoder.errors import CheckpointError

DATA = random.Random(0).randbytes(5 << 20)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def url(server):
    server.files["/file"] = DATA
    return server.url("/file")


def test_a_whole_file(url, server, tmp_path, tree):
    fetch(url, tmp_path / "new" / "file", sha256=SHA256)
    assert (tmp_path / "new" / "file").read_bytes() == DATA
    assert tree(tmp_path) == ["new/file"]
    assert server.requests == [None]


def test_it_goes_on_within_one_call(url, server, tmp_path, tree):
    server.breaks = [3 << 20, 1 << 20]
    fetch(url, tmp_path / "file", sha256=SHA256)
    assert server.requests == [None, f"bytes={3 << 20}-", f"bytes={4 << 20}-"]
    assert (tmp_path / "file").read_bytes() == DATA
    assert tree(tmp_path) == ["file"]


def test_it_goes_on_in_the_next_call(url, server, tmp_path, tree):
    server.breaks = [1 << 20, 1 << 20]
    with pytest.raises(CheckpointError, match=r"broke off 2 times .*resumes from the partial download, .*file\.part"):
        fetch(url, tmp_path / "file", tries=2)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").read_bytes() == DATA[: 2 << 20]
    fetch(url, tmp_path / "file", sha256=SHA256)
    assert server.requests[2:] == [f"bytes={2 << 20}-"]
    assert (tmp_path / "file").read_bytes() == DATA
    assert tree(tmp_path) == ["file"]


def test_a_part_that_is_whole_is_not_asked_for(url, server, tmp_path):
    server.breaks = [1 << 20]
    with pytest.raises(CheckpointError):
        fetch(url, tmp_path / "file", tries=1)
    (tmp_path / "file.part").write_bytes(DATA)  # the start that came this far was killed before it could check
    fetch(url, tmp_path / "file", sha256=SHA256)
    assert len(server.requests) == 1


@pytest.mark.parametrize("change", ["changed", "no ranges", "no version", "another url", "no state", "damaged state"])
def test_parts_that_do_not_fit_are_not_used(change, url, server, tmp_path):
    server.has_version = change != "no version"
    server.breaks = [3 << 20]
    with pytest.raises(CheckpointError):
        fetch(url, tmp_path / "file", tries=1)
    server.knows_ranges = change != "no ranges"
    expected = DATA[::-1] if change in ("changed", "another url") else DATA
    if change == "another url":
        url = server.url("/other")
        server.files["/other"] = expected
    server.files["/file"] = expected
    if change == "no state":
        (tmp_path / "file.part.json").unlink()
    if change == "damaged state":
        (tmp_path / "file.part.json").write_text("[]")
    fetch(url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == expected


def test_a_wrong_checksum_leaves_nothing(url, server, tmp_path, tree):
    with pytest.raises(CheckpointError, match=f"has the checksum {SHA256}, not {'0' * 64}"):
        fetch(url, tmp_path / "file", sha256="0" * 64)
    assert tree(tmp_path) == []
    fetch(url, tmp_path / "file", sha256=SHA256)
    assert server.requests == [None, None]


def test_errors_of_the_server(url, server, tmp_path, tree):
    with pytest.raises(CheckpointError, match=r"/missing: cannot be downloaded \(HTTP 404"):
        fetch(server.url("/missing"), tmp_path / "missing")
    assert server.requests == [None]  # it will not be there the next time either
    server.breaks, server.statuses = [1 << 20], []
    with pytest.raises(CheckpointError):
        fetch(url, tmp_path / "file", tries=1)
    server.statuses = [503, 429]
    fetch(url, tmp_path / "file", sha256=SHA256)
    assert server.requests[2:] == [f"bytes={1 << 20}-"] * 3  # what came stays through errors that pass
    assert tree(tmp_path) == ["file"]


def test_no_server(tmp_path, monkeypatch):
    from parlai.zoo.polyencoder import fetch as module

    monkeypatch.setattr(module, "PAUSE", 0.0)
    with pytest.raises(CheckpointError, match=r"^http://127.0.0.1:9/file: cannot be reached \(.*\)$"):
        fetch("http://127.0.0.1:9/file", tmp_path / "no" / "file")
    assert not list(tmp_path.iterdir())
