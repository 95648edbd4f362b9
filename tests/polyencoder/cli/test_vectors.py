"""`polyencoder encode --out X.parquet` and `index --vectors`: vectors that exist, from files into an index."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyencoder.errors import PolyencoderError
from polyencoder.index import FolderIndex, candidates_from
from tests.commands import command_fails, run_command

pytestmark = pytest.mark.slow


@pytest.fixture
def workdir(tmp_path, make_ranker, sentences, monkeypatch):
    """A folder with a model, another one, candidates and their vectors."""
    monkeypatch.chdir(tmp_path)
    ranker = make_ranker("poly")
    ranker.save_pretrained("model")
    make_ranker("poly", seed=1).save_pretrained("other")
    records = [{"id": f"r{i}", "text": text, "n": i} for i, text in enumerate(sentences)]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, records)))
    vectors = ranker.encode_candidates(sentences).tolist()
    rows = [record | {"vector": vector} for record, vector in zip(records, vectors, strict=True)]
    (tmp_path / "vectors.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "vectors.npy").touch()
    return tmp_path


def search(*arguments) -> list[dict]:
    done = run_command("search", "--model", "model", "--context", "do you ski ?", "-k", "3", "--json", *arguments)
    return json.loads(done.stdout)["hits"]


def test_no_encoding(workdir, make_ranker, sentences):
    ranker = make_ranker("poly")
    output = run_command("index", "--vectors", "vectors.jsonl", "--model", "model", "--out", "index").stdout
    assert output == f"index: {len(sentences)} candidates\n"
    ranker.index(candidates_from("some.jsonl"), "encoded", model_name="model")
    assert search("--index", "index") == search("--index", "encoded")
    stored = FolderIndex.open("index", ranker).vectors.take(np.arange(len(sentences)))
    expected = [json.loads(line)["vector"] for line in (workdir / "vectors.jsonl").read_text().splitlines()]
    assert (stored == np.float32(expected)).all()
    run_command("index", "--vectors", "vectors.jsonl", "--fingerprint", "theirs", "--out", "foreign")
    assert "model: not known (foreign encoder, fingerprint theirs)" in run_command("index", "--info", "foreign").stdout


def test_vectors_that_encode_wrote(workdir, sentences, monkeypatch):
    """The file names the model and gives the same index as encoding the candidates, with their metadata."""
    monkeypatch.setattr("polyencoder.cli.encode.ROWS_AT_ONCE", 3)
    encode = ["encode", "some.jsonl", "--kind", "candidate", "--no-progress", "--out", "some.parquet"]
    done = run_command(*encode, "--model", "model")
    assert done.stdout == f"some.parquet: {len(sentences)} vectors of 16 numbers\n"
    run_command("index", "--vectors", "some.parquet", "--out", "index")
    run_command("index", "--candidates", "some.jsonl", "--model", "model", "--out", "encoded")
    for hit, expected in zip(search("--index", "index"), search("--index", "encoded"), strict=True):
        assert hit | {"score": 0} == expected | {"score": 0}
        assert hit["score"] == pytest.approx(expected["score"], rel=1e-5)
    command = ["index", "--vectors", "some.parquet", "--out", "other_index"]
    command_fails(PolyencoderError, "made by another model", *command, "--model", "other")
    run_command(*encode, "--model", "model", "--normalize", "--overwrite")
    command_fails(PolyencoderError, "do not say which encoder", *command)


def test_what_cannot_be(workdir):
    for arguments, problem in [
        (["--vectors", "vectors.jsonl"], "the files do not say which encoder made the vectors"),
        (["--vectors", "vectors.jsonl", "--model", "other"], r"vectors.jsonl, line 1: its vector"),
        (["--vectors", "vectors.jsonl", "--model", "model", "--fingerprint", "x"], "fingerprint is not read with"),
        (["--vectors", "none.jsonl", "--fingerprint", "x"], "no such file"),
        (["--vectors", "some.jsonl", "--fingerprint", "x"], r"some\.jsonl, line 1: has no vector"),
        (["--candidates", "some.jsonl"], "give --model, which encodes the candidates"),
        (["--candidates", "some.jsonl", "--model", "model", "--fingerprint", "x"], "fingerprint is"),
        (["--candidates", "some.jsonl", "--model", "model", "--vectors", "vectors.jsonl"], "candidates is"),
    ]:
        command_fails(PolyencoderError, problem, "index", "--out", "index", *arguments)
        assert not (workdir / "index").exists()
