"""What holds no model is called what it is."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from polyencoder.errors import PolyencoderError
from polyencoder.ranker import Ranker
from polyencoder.storage.foreign import describe_file
from polyencoder.storage.names import WEIGHTS

FOLDERS = {
    "an index of candidates": ["index.sqlite", "meta.json", "vectors-000000000000-0123456789abcdef.npy"],
    "an index whose build was interrupted": ["unfinished.sqlite"],
    "ONNX graphs of a ranker": ["onnx.json", "context.onnx", "config.json", "tokenizer.json"],
    "ONNX graphs of another program": ["onnx/model.onnx", "tokenizer.json"],
    "adapters of PEFT": ["adapter_config.json", "adapter_model.safetensors"],
    r"llama\.cpp": ["minilm.Q8_0.gguf"],
    "a run that has no model yet": ["training/checkpoint.pt"],
    "checkpoint-500": ["checkpoint-500/config.json", "checkpoint-500/model.safetensors"],
    "inner": ["inner/config.json", "README.md"],
    "weights without their config.json": ["model.safetensors"],
    "a model without torch's weights": ["openvino_model.xml"],
    "without torch's weights": ["tf_model.h5"],
    "a data set, not": ["train.jsonl", "valid.jsonl"],
    "such as notes": ["notes"],
    "an empty folder": [],
}


@pytest.mark.parametrize("what", FOLDERS)
def test_folders(tmp_path, what):
    for name in FOLDERS[what]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    if what != "adapters of PEFT":  # which are loaded with their base, if that is there
        with pytest.raises(PolyencoderError, match=rf"{tmp_path}.*{what}") as error:
            Ranker.load(tmp_path)
        assert len(str(error.value).splitlines()) == 1
    assert what.replace("\\", "") in describe_file(tmp_path)


def make_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/config.json", "{}")


FILES = {
    "GGUF": ("model.gguf", lambda path: path.write_bytes(b"GGUF\3\0\0\0")),
    "a Parquet file": ("data.parquet", lambda path: path.write_bytes(b"PAR1data")),
    "SQLite": ("index.sqlite", lambda path: sqlite3.connect(path).execute("CREATE TABLE a (b)").connection.close()),
    "a compressed file": ("model.tar.gz", lambda path: path.write_bytes(gzip.compress(b"x"))),
    "a zip archive": ("model.zip", make_zip),
    "weights alone": ("model.safetensors", lambda path: save_file({"a": torch.zeros(1)}, path)),
    "one ONNX graph": ("model.onnx", lambda path: path.write_bytes(b"\x08\x0a")),
    "a file of text or data": ("pairs.jsonl", lambda path: path.write_text(json.dumps({"context": ["hi"]}))),
}


@pytest.mark.parametrize("what", FILES)
def test_files(tmp_path, what):
    name, write = FILES[what]
    write(tmp_path / name)
    with pytest.raises(PolyencoderError, match=f"{tmp_path / name}.*{what}") as error:
        Ranker.load(tmp_path / name)
    assert len(str(error.value).splitlines()) == 1


def test_files_of_torch_are_no_archives(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "model")
    assert describe_file(tmp_path / "model") is None


@pytest.mark.parametrize("offset", [-18, -6, 46])  # of the archive's end, and of its list of files
def test_a_damaged_file_of_torch(tmp_path, offset):
    path = tmp_path / "model"
    torch.save({"a": torch.zeros(1)}, path)
    data = path.read_bytes()
    offset = data.index(b"PK\x01\x02") + offset if offset > 0 else len(data) + offset
    path.write_bytes(data[:offset] + b"\xff" + data[offset + 1 :])
    with pytest.raises(PolyencoderError, match=str(path)) as error:
        Ranker.load(path)
    assert len(str(error.value).splitlines()) == 1


def test_a_header_that_nests_without_end(make_ranker, tmp_path):
    """A hostile one: the error is one line."""
    make_ranker("bi").save_pretrained(tmp_path)
    deep = json.dumps({"__metadata__": {"polyencoder": "[" * 100_000}}).encode()
    (tmp_path / WEIGHTS).write_bytes(struct.pack("<Q", len(deep)) + deep)
    with pytest.raises(PolyencoderError, match=WEIGHTS):
        Ranker.load(tmp_path)
    deep = b'{"__metadata__": ' + b'{"a":' * 100_000 + b"}" * 100_001
    (tmp_path / WEIGHTS).write_bytes(struct.pack("<Q", len(deep)) + deep)
    with pytest.raises(PolyencoderError, match=WEIGHTS):
        Ranker.load(tmp_path)
