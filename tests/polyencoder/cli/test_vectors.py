"""`polyencoder index --vectors` and `encode-candidates`: vectors that exist, from files into an index."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from polyencoder.errors import PolyencoderError
from polyencoder.index import FolderIndex, candidates_from
from tests.commands import command_fails, run_command

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path, make_ranker, sentences, monkeypatch):
    """A folder with a model, another one, candidates and their vectors."""
    monkeypatch.chdir(tmp_path)
    ranker = make_ranker("poly")
    ranker.save_pretrained("model")
    make_ranker("poly", seed=1).save_pretrained("other")
    records = [{"id": f"r{i}", "text": text, "n": i} for i, text in enumerate(sentences)]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, records)))
    np.save("some.npy", ranker.encode_candidates(sentences).numpy())
    return tmp_path


def search(*arguments) -> list[dict]:
    said = run_command("search", "--model", "model", "--context", "do you ski ?", "-k", "3", "--json", *arguments)
    return json.loads(said.stdout)["hits"]


def test_no_encoding(place, make_ranker, sentences):
    ranker = make_ranker("poly")
    said = run_command("index", "--vectors", "some.npy", "--model", "model", "--out", "index").stdout
    assert said == f"index: {len(sentences)} candidates\n"
    ranker.index(candidates_from("some.jsonl"), "encoded", model_name="model")
    assert search("--index", "index") == search("--index", "encoded")
    stored = FolderIndex.open("index", ranker).vectors.take(torch.arange(len(sentences)))
    assert (stored.numpy() == np.load("some.npy")).all()
    run_command("index", "--vectors", "some.npy", "--fingerprint", "theirs", "--out", "foreign")
    assert "model: not known (foreign encoder, fingerprint theirs)" in run_command("index", "--info", "foreign").stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--vectors", "some.npy"], "the files do not say which encoder made the vectors"),
        (
            ["--vectors", "some.npy", "--model", "other"],
            r"some\.npy, row 1: its vector is not the model's vector of its text",
        ),
        (["--vectors", "some.npy", "--model", "model", "--fingerprint", "x"], "fingerprint is not read with"),
        (["--vectors", "some.npy", "--model", "model", "--workers", "2"], "nothing is encoded"),
        (["--vectors", "none.npy", "--fingerprint", "x"], "no such file"),
        (["--vectors", "some.jsonl", "--fingerprint", "x"], r"some\.jsonl: vectors are read from \.parquet"),
        (["--candidates", "some.jsonl"], "give --model, which encodes the candidates"),
        (["--candidates", "some.jsonl", "--model", "model", "--fingerprint", "x"], "fingerprint is"),
        (["--candidates", "some.jsonl", "--model", "model", "--vectors", "some.npy"], "candidates is"),
        (["--model", "model"], "give --candidates, which are encoded, or --vectors"),
    ],
)
def test_what_cannot_be(place, arguments, problem):
    command_fails(PolyencoderError, problem, "index", "--out", "index", *arguments)
    assert not (place / "index").exists()
