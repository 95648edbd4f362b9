"""Precomputed vectors: files of them are candidates, an error names the row; all vectors are the model's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.index import Candidate, Fingerprints, vectors_from
from polyencoder.index.precomputed import FINGERPRINTS, check_vector, check_vectors, is_same_vector, read_fingerprints

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly", normalize=True)


@pytest.fixture
def precomputed(ranker, sentences) -> list[Candidate]:
    vectors = torch.as_tensor(ranker.encode_candidates(sentences)).numpy()
    return [
        Candidate(str(i), text, None, f"row {i}", vector)
        for i, (text, vector) in enumerate(zip(sentences * 2, [*vectors, *vectors], strict=True))
    ]


def test_those_of_the_model_pass(ranker, precomputed):
    records, dim = check_vectors(iter(precomputed), ranker)
    assert dim == 16
    assert [record.vector.tobytes() for record in records] == [record.vector.tobytes() for record in precomputed]
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        other = [record._replace(vector=torch.tensor(record.vector).to(kind)) for record in precomputed]
        assert len(list(check_vectors(iter(other), ranker)[0])) == len(precomputed)


@pytest.mark.parametrize(
    ("position", "change", "problem"),
    [
        (1, lambda v: v[::-1].copy(), "its vector is not the model's vector of its text"),
        (1, lambda v: v[:8], "its vector has 8 numbers, not 16"),
        (12, lambda v: v[:8], "its vector has 8 numbers, not 16"),
        (12, lambda v: 3 * v, "its vector has the length"),
        (12, lambda v: 0 * v, "its vector is zero"),
        (12, lambda v: np.where(np.arange(16) == 3, NAN, v), "its vector is not finite"),
        (12, lambda v: np.where(np.arange(16) == 3, INF, v), "its vector is not finite"),
        (12, lambda v: np.float64(v) * 1e300, "its vector is not finite"),
        (12, lambda v: v.reshape(4, 4), r"its vector has the shape \[4, 4\]"),
        (12, lambda v: ["a", "b"], r"its vector is \[.*it must be numbers"),
        (12, lambda v: None, "has no vector; either all candidates"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_which_one_is_wrong(ranker, precomputed, position, change, problem):
    precomputed[position] = precomputed[position]._replace(vector=change(precomputed[position].vector))
    records, _ = check_vectors(iter(precomputed), ranker)
    with pytest.raises(InputError, match=f"^row {position}: {problem}"):
        list(records)


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30, 3e37])
def test_their_lengths_neither_vanish_nor_overflow(size):
    vectors = np.random.default_rng(0).normal(size=(2, 8)).clip(-5, 5) * size
    records = [Candidate(None, str(i), None, "row", vector) for i, vector in enumerate(vectors)]
    first, second = (record.vector for record in check_vectors(iter(records), Fingerprints("theirs"))[0])
    assert is_same_vector(first, first)
    assert not is_same_vector(first, second)


def test_all_or_none(ranker, precomputed, sentences):
    texts = [Candidate(None, text, None, "a text") for text in sentences]
    assert list(check_vectors(iter(texts), ranker)[0]) == texts
    with pytest.raises(InputError, match="^row 0: has a vector"):
        list(check_vectors(iter([*texts, *precomputed]), ranker)[0])
    with pytest.raises(InputError, match="^a text: has no vector, and there is no model to encode"):
        check_vectors(iter(texts), Fingerprints("theirs"))
    assert check_vectors(iter(precomputed), Fingerprints("theirs"))[1] == 16


def test_rounding_is_no_difference():
    vector = torch.randn(64, generator=torch.Generator().manual_seed(0)).numpy()
    assert is_same_vector(vector, vector.astype(np.float16).astype(np.float32))
    assert is_same_vector(vector, torch.tensor(vector).bfloat16().float().numpy())
    assert not is_same_vector(vector, vector[::-1])
    assert check_vector(Candidate("a", "b", vector=list(vector))).vector.dtype == np.float32


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
    plain = pa.table(values | columns)
    return plain if stated is None else plain.replace_schema_metadata({FINGERPRINTS: json.dumps(stated)})


def candidates():
    return [(str(i), f"text {i}", METADATA[i], VECTORS[i].astype(np.float32).tolist()) for i in range(N)]


def read(*paths, **options):
    return [(c.id, c.text, c.metadata, c.vector.tolist()) for c in vectors_from(list(paths), **options)]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(kind, *size) for kind in (pa.float16(), pa.float32(), pa.float64()) for size in ((), (DIM,))]
    + [pa.large_list(pa.float32())],
    ids=str,
)
@pytest.mark.parametrize("metadata", ["object", "json"])
def test_parquet_and_json_lines(tmp_path, kind, metadata):
    source = table(kind, metadata=metadata)
    parquet.write_table(source, tmp_path / "a.parquet", row_group_size=5)
    assert read(tmp_path / "a.parquet") == candidates()
    rows = [row | {"vector": list(map(float, row["vector"]))} for row in source.to_pylist()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(tmp_path / "a.jsonl") == candidates()


def test_other_columns_and_maps_are_metadata(tmp_path):
    source = table(metadata="map", colour=["red"] * N).drop_columns(["id"])
    parquet.write_table(source, tmp_path / "a.parquet")
    (first, second, *_) = vectors_from(tmp_path / "*.parquet")
    assert first[:3] == (None, "text 0", {"colour": "red"})
    assert second.metadata == {"colour": "red", "lang": "en", "n": "1"}


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
        (lambda t: t.drop_columns(["vector"]), "row 1: has no vector"),
        (lambda t: t.drop_columns(["text"]), "row 1: no text in the field `text`"),
        (lambda t: t.set_column(3, "vector", pa.array([1.0] * N)), r"row 1: its vector has the shape \[\]"),
        (lambda t: t.set_column(3, "vector", pa.array([["a"]] * N)), r"row 1: its vector is .* must be numbers"),
    ],
)
def test_other_columns(tmp_path, change, problem):
    parquet.write_table(change(table()), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=problem):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_damaged_files(tmp_path, name):
    (tmp_path / name).write_bytes(b"this is no file of vectors" * 9)
    with pytest.raises(InputError, match=name):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npy", "a.feather", "a.csv", "a.txt"])
def test_other_formats_are_refused_before_anything_is_read(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"{name}: vectors are read from a column `vector` of \.parquet or \.jsonl"):
        vectors_from(tmp_path / name)


def test_the_encoder_that_files_name(tmp_path):
    parquet.write_table(table(), tmp_path / "a.parquet")
    assert read_fingerprints(tmp_path / "a.parquet") is None
    parquet.write_table(table(stated=["abc", "tok"]), tmp_path / "b.parquet")
    assert read_fingerprints([tmp_path / "a.parquet", tmp_path / "b.parquet"]) == Fingerprints("abc", "tok")
    parquet.write_table(table(stated=["other", "tok"]), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: its vectors come from another encoder \(other\)"):
        read_fingerprints([tmp_path / "b.parquet", tmp_path / "c.parquet"])
    parquet.write_table(table(stated=[]), tmp_path / "d.parquet")
    with pytest.raises(InputError, match=r"d\.parquet"):
        read_fingerprints(tmp_path / "d.parquet")
