"""`polyencoder encode-candidates`: its files become the index that encodes the candidates itself."""

from __future__ import annotations

import json

import pytest

from polyencoder.distributed.encoding import _loaded
from polyencoder.errors import ConfigError, InputError
from polyencoder.index import open_index
from tests.commands import command_fails, run_command

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.slow


def test_its_files_are_an_index(tmp_path, monkeypatch, make_ranker, sentences):
    monkeypatch.chdir(tmp_path)
    ranker = make_ranker("poly")
    ranker.save_pretrained("model")
    records = [{"id": f"r{i}", "text": text, "n": i} for i, text in enumerate(sentences)]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, records)))
    command = ["encode-candidates", "--model", "model", "--input", "some.jsonl", "--output", "parts", "--rows", "3"]
    first = run_command(*command).stdout
    assert first == f"parts: {len(sentences)} candidates\n"
    parts = sorted(map(str, (tmp_path / "parts").iterdir()))
    written = [(tmp_path / part).read_bytes() for part in parts]
    (tmp_path / parts[1]).unlink()
    assert run_command(*command).stdout == first
    assert [(tmp_path / part).read_bytes() for part in parts] == written

    run_command("index", "--vectors", *parts, "--out", "given", "--shard-size", "3")  # the files say which model
    run_command("index", "--candidates", "some.jsonl", "--model", "model", "--out", "encoded", "--shard-size", "3")
    given, encoded = (open_index(name, ranker) for name in ("given", "encoded"))
    contexts = ranker.encode_contexts(["hello", "do you ski ?"])
    assert given.search(contexts, top_k=99) == encoded.search(contexts, top_k=99)

    make_ranker("poly", seed=1).save_pretrained("other")
    command_fails(InputError, "made by another model", "index", "--vectors", *parts, "--model", "other", "--out", "x")
    command_fails(InputError, "give no other", "index", "--vectors", *parts, "--fingerprint", "other", "--out", "x")
    _loaded.cache_clear()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "some.txt").write_text("mine")
    flags = ["--model", "none", "--input", tmp_path / "some.txt", "--output", tmp_path / "some.txt"]
    command_fails(ConfigError, "is a file; give the name of a folder", "encode-candidates", *flags)


def test_ray_chooses_the_gpu_of_each_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.parquet").write_bytes(b"")
    flags = ["--model", "model", "--input", "some.parquet", "--output", "parts", "--engine", "ray"]
    command_fails(
        ConfigError, "Ray gives each worker a GPU of its own", "encode-candidates", *flags, "--device", "cuda:1"
    )
