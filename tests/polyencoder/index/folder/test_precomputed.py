"""An index of vectors that exist is, byte by byte, the one that encodes the texts, however often it is killed."""

from __future__ import annotations

import os

import numpy as np
import pytest

import polyencoder.index.folder.build as build_module
import polyencoder.index.folder.precomputed as precomputed_module
import polyencoder.index.folder.shards as shards_module
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index import Fingerprints, FolderIndex, build_index, open_index
from polyencoder.index.entries import Candidate
from tests.polyencoder.index.folder.building import Killed, contents, killed_at

pytestmark = pytest.mark.slow


@pytest.fixture
def with_vectors(ranker, candidates) -> list[Candidate]:
    vectors = {candidate.text: ranker.encode_candidates([candidate.text])[0] for candidate in candidates}
    return [candidate._replace(vector=vectors[candidate.text]) for candidate in candidates]


@pytest.fixture
def build(tmp_path, ranker, candidates, with_vectors, monkeypatch):
    """(name, precomputed=..., **settings) -> the contents of the folder that was built."""

    def build(name: str, *, precomputed: bool = True, maker=ranker, **settings):
        if precomputed:
            monkeypatch.setattr(shards_module, "encode_rows", None)  # nothing is encoded
        build_index(tmp_path / name, with_vectors if precomputed else candidates, maker, shard_size=3, **settings)
        monkeypatch.undo()
        return contents(tmp_path / name)

    return build


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_its_files_hold_the_vectors(build, tmp_path, ranker, with_vectors, dtype, assert_finds):
    stored, encoded = build("given", dtype=dtype), build("encoded", precomputed=False, dtype=dtype)
    assert stored.keys() == encoded.keys()
    index, other = (FolderIndex.open(tmp_path / name, ranker) for name in ("given", "encoded"))
    assert index.texts() == other.texts()
    rows = list({candidate.text: candidate.vector for candidate in with_vectors}.values())
    error = np.abs(index.vectors.take(np.arange(len(rows))) - np.stack(rows)).max()
    assert error <= {"float32": 0, "bfloat16": 2**-8, "int8": 1 / 250}[dtype] * np.abs(rows).max()
    if dtype == "float32":
        assert_finds(index, ranker, with_vectors)


MOMENTS = [
    (os, "replace", 1),
    (os, "replace", 3),
    (os, "replace", 4),
    (os, "replace", 5),
    (precomputed_module, "write_vectors", 1),
    (precomputed_module, "write_vectors", 3),
    (build_module, "_finish", 1),
    (build_module, "fsync", 1),
]


@pytest.mark.parametrize(("module", "name", "call"), MOMENTS)
def test_killed_and_started_again(build, module, name, call):
    undisturbed = build("undisturbed")
    for after in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, module, name, call, after=after)
            with pytest.raises(Killed):
                build(f"again {after}")
        assert build(f"again {after}") == undisturbed
    assert build("again True") == undisturbed  # it is finished, and compared


def test_a_text_has_one_vector_and_other_vectors_are_another_index(tmp_path, build, ranker, with_vectors):
    last = with_vectors[-1]
    other = last._replace(vector=-last.vector, where="b.parquet, row 2")
    with pytest.raises(InputError, match=r"b\.parquet, row 2: its text, .* occurred before with another vector"):
        build_index(tmp_path / "new", [*with_vectors[:-1], other], ranker, shard_size=3)
    assert not (tmp_path / "new").exists()
    build("given")
    nearly = last._replace(vector=last.vector * np.float32(1.001))
    with pytest.raises(InputError, match="has an index of other candidates"):
        build_index(tmp_path / "given", [*with_vectors[:-1], nearly], ranker, shard_size=3)
    build_index(tmp_path / "nearly", [*with_vectors[:-1], nearly], ranker, shard_size=3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_text_that_comes_again_after_its_vector_was_written(tmp_path, dtype):
    """Some encoders have one large number in each vector: int8 rounds the others to a hundredth of it."""
    vectors = np.random.default_rng(0).normal(size=(5, 384)).astype(np.float32)
    vectors[:, 7] = 27
    texts = [f"text {row}" for row in range(5)]
    candidates = [
        Candidate(f"{part} {text}", text, vector=vectors[row]) for part in (0, 1) for row, text in enumerate(texts)
    ]
    build_index(tmp_path / "index", candidates, Fingerprints("theirs"), dtype=dtype, shard_size=2)
    with open_index(tmp_path / "index") as index:
        assert (len(index), index.count_texts()) == (10, 5)
    other = candidates[0]._replace(id="other", vector=vectors[1])
    with pytest.raises(InputError, match="occurred before with another vector"):
        build_index(tmp_path / "new", [*candidates, other], Fingerprints("theirs"), dtype=dtype, shard_size=2)
    large = candidates[0]._replace(id="other", vector=vectors[0] * 1e5)
    match = "of the candidate 'text 0' have numbers" if dtype == "float16" else "'text 0', occurred before with another"
    with pytest.raises(InputError, match=match):
        build_index(tmp_path / "new", [*candidates, large], Fingerprints("theirs"), dtype=dtype, shard_size=2)


def test_a_foreign_encoder_is_a_name(tmp_path, build, ranker, with_vectors, contexts):
    build("foreign", maker=Fingerprints("their encoder v2"))
    index = open_index(tmp_path / "foreign", Fingerprints("their encoder v2"))
    vectors = contexts.vectors[:, 0]
    results = index.search(vectors, top_k=3)
    scores = np.stack([candidate.vector for candidate in with_vectors]) @ vectors.T
    for context, hits in enumerate(results):
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores[:, context])[::-1][:3], rel=1e-5)
    assert open_index(tmp_path / "foreign").search(vectors, top_k=3) == results
    for other in (ranker, Fingerprints("v3")):
        with pytest.raises(CheckpointError, match=r"a foreign encoder \(fingerprint their encoder v2\)"):
            open_index(tmp_path / "foreign", other)
    with pytest.raises(InputError, match="was opened without its model"):
        index.add(["a new text"])
    with pytest.raises(InputError, match="has a vector, but here the model encodes what is added"):
        index.add(with_vectors)
    build("known", maker=Fingerprints(Fingerprints.of(ranker).model))
    assert len(open_index(tmp_path / "known", ranker)) == len(with_vectors)


def test_what_encodes_nothing_needs_no_workers(tmp_path, ranker, with_vectors):
    with pytest.raises(ConfigError, match="workers is for texts"):
        build_index(tmp_path / "index", with_vectors, ranker, workers=2)
    with pytest.raises(InputError, match="the input is empty"):
        build_index(tmp_path / "index", [], Fingerprints("x"))
