"""Files of vectors, of every format, are the same candidates; what is wrong in one is said with its row."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.index import Fingerprints, vectors_from
from polyencoder.index.parts import FINGERPRINTS, fingerprints_of

pa = pytest.importorskip("pyarrow")
feather, parquet = pytest.importorskip("pyarrow.feather"), pytest.importorskip("pyarrow.parquet")

N, DIM = 9, 4
VECTORS = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float16)
METADATA = [{"lang": "en", "n": i} if i % 3 else None for i in range(N)]


def table(kind=None, *, metadata="object", stated=None, **columns) -> pa.Table:
    kind = kind or pa.list_(pa.float32())
    written = {
        "object": METADATA,
        "json": [m and json.dumps(m) for m in METADATA],
        "map": pa.array(
            [m and [(k, str(v)) for k, v in m.items()] for m in METADATA], pa.map_(pa.string(), pa.string())
        ),
    }[metadata]
    values = {"id": list(range(N)), "text": [f"text {i}" for i in range(N)], "metadata": written}
    values["vector"] = pa.array([row.astype(kind.value_type.to_pandas_dtype()) for row in VECTORS], kind)
    made = pa.table(values | columns)
    return made if stated is None else made.replace_schema_metadata({FINGERPRINTS: json.dumps(stated)})


def candidates(table_or_none=None):
    return [(str(i), f"text {i}", METADATA[i], VECTORS[i].astype(np.float32).tolist()) for i in range(N)]


def read(*paths, **others):
    return [(c.id, c.text, c.metadata, c.vector.tolist()) for c in vectors_from(list(paths), **others)]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(kind, *size) for kind in (pa.float16(), pa.float32(), pa.float64()) for size in ((), (DIM,))]
    + [pa.large_list(pa.float32())],
    ids=str,
)
@pytest.mark.parametrize("metadata", ["object", "json"])
def test_tables(tmp_path, monkeypatch, kind, metadata):
    monkeypatch.setattr("polyencoder.index.parts._ROWS_AT_ONCE", 4)
    made = table(kind, metadata=metadata)
    expected = candidates()
    parquet.write_table(made, tmp_path / "a.parquet", row_group_size=5)
    assert read(tmp_path / "a.parquet") == expected
    feather.write_feather(made, tmp_path / "a.feather", chunksize=5)
    assert read(tmp_path / "a.feather") == expected
    with pa.ipc.new_stream(tmp_path / "a.arrow", made.schema) as stream:
        stream.write_table(made, max_chunksize=7)
    assert read(tmp_path / "a.arrow") == expected


def test_other_columns_and_maps_are_metadata(tmp_path):
    made = table(metadata="map", colour=["red"] * N).drop_columns(["id"])
    parquet.write_table(made, tmp_path / "a.parquet")
    (first, second, *_) = vectors_from(tmp_path / "*.parquet")
    assert first[:3] == (None, "text 0", {"colour": "red"})
    assert second.metadata == {"colour": "red", "lang": "en", "n": "1"}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_an_array_beside_its_records(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("polyencoder.index.parts.require", lambda package, **_: pytest.fail(f"{package} is not needed"))
    np.save(tmp_path / "a.npy", VECTORS.astype(kind))
    lines = [
        json.dumps({"id": i, "text": f"text {i}"} | ({"metadata": m} if m else {})) for i, m in enumerate(METADATA)
    ]
    beside = tmp_path / "a.jsonl"
    beside.write_text("\n".join(lines))
    assert read(tmp_path / "a.npy") == candidates()
    assert fingerprints_of(tmp_path / "a.npy") is None
    beside.write_text("\n".join(lines[:-1]))
    with pytest.raises(InputError, match=r"a\.npy, row 9: a vector without a record; .*a\.jsonl has 8"):
        read(tmp_path / "a.npy")
    beside.write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(InputError, match=r"a\.jsonl, line 10: a record without a vector"):
        read(tmp_path / "a.npy")
    beside.write_text("")
    with pytest.raises(InputError, match=r"a\.npy, row 1: a vector without a record; .*a\.jsonl has 0"):
        read(tmp_path / "a.npy")
    beside.unlink()
    with pytest.raises(InputError, match=r"no a\.jsonl beside it"):
        read(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", VECTORS[0])
    with pytest.raises(InputError, match=r"float16 \[4\]; it must be floats \[candidates, dim\]"):
        read(tmp_path / "a.npy")


def _vectors(change):
    rows = [row.astype(np.float64).tolist() for row in VECTORS]
    rows[5] = change
    return {"vector": pa.array(rows)}


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"text": [f"{i}" if i != 5 else None for i in range(N)]}, "row 6: no text"),
        ({"text": [f"{i}" if i != 5 else " " for i in range(N)]}, "row 6: no text"),
        (_vectors(None), "row 6: has no vector"),
        (_vectors([1.0, 2.0]), "row 6: its vector has 2 numbers, not 4"),
        (_vectors([1.0, None, 2.0, 3.0]), "row 6: its vector is not finite"),
        (_vectors([1.0, float("inf"), 2.0, 3.0]), "row 6: its vector is not finite"),
        (_vectors([0.0] * 4), "row 6: its vector is zero"),
    ],
)
def test_which_row_is_wrong(tmp_path, columns, problem):
    parquet.write_table(table(**columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a\.parquet, {problem}"):
        read(tmp_path / "a.parquet")
    bad = BadExamples(skip=True)
    assert len(read(tmp_path / "a.parquet", bad=bad)) == N - 1
    assert bad.count == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.drop_columns(["vector"]), "no column 'vector'; it has 'id', 'text', 'metadata'"),
        (lambda t: t.drop_columns(["text"]), "no column 'text'"),
        (lambda t: t.set_column(3, "vector", pa.array([1.0] * N)), "`vector` is double; it must be a list of floats"),
        (lambda t: t.set_column(3, "vector", pa.array([[1]] * N)), "must be a list of floats"),
    ],
)
def test_other_columns(tmp_path, change, problem):
    parquet.write_table(change(table()), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=problem):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.npy", "a.csv"])
def test_other_files(tmp_path, name):
    (tmp_path / name).write_bytes(b"this is no file of vectors" * 9)
    with pytest.raises(InputError, match=name):
        read(tmp_path / name)


def test_the_encoder_that_files_name(tmp_path):
    parquet.write_table(table(), tmp_path / "a.parquet")
    assert fingerprints_of(tmp_path / "a.parquet") is None
    feather.write_feather(table(stated=["abc", "tok"]), tmp_path / "b.feather")
    assert fingerprints_of([tmp_path / "a.parquet", tmp_path / "b.feather"]) == Fingerprints("abc", "tok")
    parquet.write_table(table(stated=["other", "tok"]), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: its vectors come from another encoder \(other\)"):
        fingerprints_of([tmp_path / "b.feather", tmp_path / "c.parquet"])
    parquet.write_table(table(stated=[]), tmp_path / "d.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        fingerprints_of(tmp_path / "d.parquet")
