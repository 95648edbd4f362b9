"""`polyencoder check`: one changed byte in a model or an index is found, and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from polyencoder.errors import CheckpointError
from polyencoder.export.folder import export_folder
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder
from tests.commands import command_fails, run_command


def flip(path: Path, offset: int) -> None:
    """Change the lowest bit of a byte: of a number, where it hardly shows."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, make_model, tokenizer) -> Path:
    """A poly-encoder with graphs."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("check") / "model"
    model = make_model("poly")
    export_folder(Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu"), folder, int8=True)
    return folder


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))


GRAPHS = ["candidates.int8.onnx", "candidates.onnx", "context.int8.onnx", "context.onnx"]


@pytest.mark.slow
def test_what_is_undamaged(folder, tmp_path):
    lines = run_command("check", folder).stdout.splitlines()
    assert lines == [f"{folder}: a model, undamaged", f"{folder}: {', '.join(GRAPHS)}: undamaged"]
    for name in [*GRAPHS, "onnx.json"]:
        (folder / name).unlink()
    assert run_command("check", folder, folder).stdout.splitlines() == [f"{folder}: a model, undamaged"] * 2
    assert "checking" in run_command("check", folder, "--progress").stderr


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_16_bits(make_ranker, tmp_path, dtype):
    make_ranker("bi").save_pretrained(tmp_path / "model", dtype=dtype)
    run_command("check", tmp_path / "model")


def test_a_quantized_convert(make_convert_ranker, tmp_path):
    ranker = make_convert_ranker()
    ranker.model.quantize()
    ranker.save_pretrained(tmp_path / "model")
    run_command("check", tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["query_0_Transformer/model.safetensors", *GRAPHS])
def test_one_bit_is_enough(folder, name):
    flip(folder / name, -200)  # of the weights, which load as before
    Ranker.from_pretrained(folder, device="cpu")
    command_fails(CheckpointError, rf"{name}: damaged, its checksum has changed", "check", folder)


@pytest.mark.parametrize("name", ["polyencoder.json", "tokenizer.json"])
def test_small_files_are_checked_when_the_model_is_opened(folder, name):
    (folder / name).write_text((folder / name).read_text() + "\n")
    for look in (lambda: run_command("check", folder), lambda: Ranker.from_pretrained(folder)):
        with pytest.raises(CheckpointError, match=f"{name}: not the file that was saved with polyencoder.safetensors"):
            look()


def test_what_has_no_checksums_is_not_called_undamaged(folder):
    weights = safetensors.torch.load_file(folder / "polyencoder.safetensors")
    safetensors.torch.save_file(weights, folder / "polyencoder.safetensors")
    command_fails(
        CheckpointError, "polyencoder.safetensors: holds no checksums: .* with `polyencoder export`", "check", folder
    )


def test_a_model_file(make_ranker, tmp_path):
    ranker = make_ranker("bi")
    path = tmp_path / "model"
    torch.save({"model": ranker.model.state_dict(), "ranker_config": ranker.model.config.to_json()}, path)
    assert run_command("check", path).stdout == f"{path}: weights, readable without running code, undamaged\n"
    name = next(iter(ranker.model.state_dict()))
    offset = path.read_bytes().index(ranker.model.state_dict()[name].numpy().tobytes()[:64])
    flip(path, offset)
    command_fails(CheckpointError, r"model: damaged \(Bad CRC-32", "check", path)


def test_an_index_and_what_is_none(make_ranker, sentences, tmp_path):
    command_fails(CheckpointError, "no such model, index or .opt file", "check", tmp_path / "nothing")
    make_ranker("bi").index(sentences, tmp_path / "index")
    assert run_command("check", tmp_path / "index").stdout == f"{tmp_path / 'index'}: an index, undamaged\n"
    (vectors,) = (tmp_path / "index").glob("vectors-*.int8.npy")
    flip(vectors, -4)
    command_fails(CheckpointError, rf"{vectors.name}: damaged, its checksum has changed", "check", tmp_path / "index")
