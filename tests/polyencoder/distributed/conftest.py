"""A model in a folder, candidates in two files, and the parts that one process makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polyencoder.distributed import EncodeCandidates, encode_blocks, encode_parts
from polyencoder.distributed.encoding import _loaded
from polyencoder.errors import InputError
from polyencoder.index import candidates_from

ROWS = 3


@pytest.fixture
def encode(make_ranker, tmp_path):
    make_ranker("poly").save_pretrained(tmp_path / "model")
    yield EncodeCandidates(str(tmp_path / "model"), device="cpu")
    _loaded.cache_clear()


@pytest.fixture
def files(tmp_path, sentences) -> list[Path]:
    """Of nine and four candidates, in row groups of two."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    texts = [f"{text} {i}" for i in range(2) for text in sentences]
    for path, some in zip(paths, (texts[:9], texts[9:13]), strict=True):
        rows = [{"id": None if len(text) % 2 else f"id of {text}", "text": text, "n": len(text)} for text in some]
        parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=2)
    return paths


@pytest.fixture
def parts(files, encode, tmp_path) -> dict[str, bytes]:
    encode_parts(candidates_from(files), tmp_path / "alone", encode, rows=ROWS)
    return contents(tmp_path / "alone")


@pytest.fixture
def check_engine(files, encode, parts, tmp_path):
    """(engine): it writes what one process writes, resumes after a kill, and names an invalid row."""

    def check(engine) -> None:
        folder = tmp_path / "parts"
        shutil.copytree(tmp_path / "alone", folder)
        first, second, *others = sorted(folder.iterdir())
        for path in others:
            path.unlink()  # as if a kill had left them out
        times = [path.stat().st_mtime_ns for path in (first, second)]
        assert encode_blocks(files, folder, encode, engine=engine, rows=ROWS) == 13
        assert contents(folder) == parts
        assert [path.stat().st_mtime_ns for path in (first, second)] == times
        bad = tmp_path / "bad.parquet"
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": ["hello", "bye", " "]}), bad)
        with pytest.raises(InputError, match=r"bad\.parquet, row 3: no text in the field"):
            encode_blocks(bad, tmp_path / "bad", encode, engine=engine, rows=2)

    return check


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
