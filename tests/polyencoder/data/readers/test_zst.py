"""Zstandard: several frames, long windows, damage."""

from __future__ import annotations

import random
import sys
from functools import partial

import pytest

from polyencoder.data.readers import DamagedFile, iter_records, open_bytes
from polyencoder.data.readers.sources import ZSTD
from polyencoder.errors import ConfigError

zstd = pytest.importorskip(ZSTD, reason=f"the extra `data` is not installed: {ZSTD}")


@pytest.fixture
def content() -> bytes:
    return random.Random(0).randbytes(700_000)


def test_frame_after_frame(tmp_path, content):
    path = tmp_path / "data.zst"
    frames = [content[start : start + 100_000] for start in range(0, len(content), 100_000)]
    path.write_bytes(b"".join(map(zstd.compress, frames)))
    with open_bytes(path) as file:
        assert file.read() == content
        assert file.read() == b""


def test_a_window_that_is_longer_than_the_default_allows(tmp_path):
    """`zstd --long=31` writes such windows."""
    path = tmp_path / "RC_2019-01.zst"
    options = {zstd.CompressionParameter.window_log: 31, zstd.CompressionParameter.compression_level: 1}
    with zstd.ZstdFile(path, "w", options=options) as file:
        file.write(b'{"body": "hello"}\n' * 1_000)
    assert sum(1 for _ in iter_records(str(path), format="jsonl")) == 1_000


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_what_is_cut_off_is_an_error_behind_the_bytes_before_it(tmp_path, content, share):
    packed = zstd.compress(content)
    path = tmp_path / "data.zst"
    path.write_bytes(packed[: int(len(packed) * share)])
    got: list[bytes] = []
    with open_bytes(path) as file, pytest.raises(DamagedFile, match="data.zst: damaged or cut off after"):
        got.extend(iter(partial(file.read1, 1 << 16), b""))
    assert content.startswith(b"".join(got))
    assert sum(map(len, got)) > len(content) * share - 300_000


def test_what_is_no_zstandard_is_an_error(tmp_path):
    (tmp_path / "data.zst").write_bytes(b"hello" * 100)
    with open_bytes(tmp_path / "data.zst") as file, pytest.raises(DamagedFile, match="after 0 bytes"):
        file.read()


def test_without_the_package_an_error_names_it(tmp_path, monkeypatch):
    (tmp_path / "data.zst").write_bytes(zstd.compress(b"hello"))
    monkeypatch.setitem(sys.modules, ZSTD, None)
    with pytest.raises(ConfigError, match=rf"`{ZSTD}` is not installed: pip install '.*\[data\]'"):
        open_bytes(tmp_path / "data.zst")
