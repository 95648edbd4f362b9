"""Blocks of files are the parts that one process makes, whichever worker encodes them."""

from __future__ import annotations

import pickle

import pytest

from polyencoder.distributed import encode_blocks
from polyencoder.errors import InputError
from polyencoder.index import candidates_from
from tests.polyencoder.distributed.conftest import ROWS, contents


def in_this_process(blocks, work):
    yield from map(work, blocks)


def test_in_this_process(check_engine, files, encode, tmp_path):
    check_engine(in_this_process)
    with pytest.raises(InputError, match=r"part-000000000000\.parquet: was made from other candidates"):
        encode_blocks(files[1], tmp_path / "parts", encode, engine=in_this_process, rows=ROWS)


def test_any_worker_in_any_order(files, encode, parts, tmp_path):
    def backwards(blocks, work):
        return (pickle.loads(pickle.dumps(work))(block) for block in reversed(blocks))  # noqa: S301

    assert encode_blocks(files, tmp_path / "parts", encode, engine=backwards, rows=ROWS) == 13
    assert contents(tmp_path / "parts") == parts


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_blocks_do_not_cross_files(files, encode, tmp_path, rows):
    assert encode_blocks(files, tmp_path / "parts", encode, engine=in_this_process, rows=rows) == 13
    read = pytest.importorskip("pyarrow.parquet").read_table
    tables = [read(path) for path in sorted((tmp_path / "parts").iterdir())]
    assert [table.num_rows for table in tables] == [
        min(rows, count - first) for count in (9, 4) for first in range(0, count, rows)
    ]
    texts = [text for table in tables for text in table.column("text").to_pylist()]
    assert texts == [candidate.text for candidate in candidates_from(files)]


def test_files_that_are_no_parquet(encode, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(InputError, match=r"x\.jsonl: not a Parquet file, or damaged .*; workers read Parquet"):
        encode_blocks(tmp_path / "x.jsonl", tmp_path / "parts", encode, engine=in_this_process)
    assert not (tmp_path / "parts").exists()


def test_no_cluster_is_started_for_no_rows(encode, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": arrow.array([], arrow.string())}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no part was made, as there are no candidates"):
        encode_blocks(tmp_path / "x.parquet", tmp_path / "parts", encode, engine=lambda *_: pytest.fail("started"))
