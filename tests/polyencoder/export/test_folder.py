"""Exported folders and the hub: the same scores, whole or not there, nothing of others overwritten."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from polyencoder.data.example import Example
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.export.folder import export_folder, publishing_model
from polyencoder.ranker import Ranker
from tests.model_folders import files_in, files_of, weights_in
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
@mostly_long(("dtype", "tolerance"), [("float32", 0.0), ("float16", 5e-3), ("bfloat16", 5e-2)], quick=2)
def test_the_same_scores(make_ranker, tmp_path, sentences, architecture, dtype, tolerance):
    ranker = make_ranker(architecture)
    export_folder(ranker, tmp_path / "out", dtype=dtype)
    assert files_in(tmp_path / "out") == files_of(ranker.model, "README.md")
    weights = weights_in(tmp_path / "out")
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {getattr(torch, dtype)}
    again = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert {p.dtype for p in again.model.parameters()} == {torch.float32}
    expected, actual = (source.score([sentences[:2]], sentences) for source in (ranker, again))
    assert abs(actual - expected).max() <= tolerance * abs(expected).max()


def test_weights_that_are_too_large_for_float16(make_ranker, tmp_path):
    ranker = make_ranker("cross")
    torch.nn.init.constant_(ranker.model.linear.bias, 1e6)
    with pytest.raises(CheckpointError, match=r"linear\.bias has values up to 1"):
        ranker.save_pretrained(tmp_path / "out", dtype="float16")
    ranker.save_pretrained(tmp_path / "out", dtype="bfloat16")
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        ranker.save_pretrained(tmp_path / "out", dtype="int8")


def test_graphs_are_of_the_rounded_weights(make_ranker, tmp_path, sentences):
    pytest.importorskip("onnxruntime")
    ranker = make_ranker("poly")
    examples = [Example([sentence], sentences[0], sentences) for sentence in sentences[:3]]
    change = export_folder(ranker, tmp_path / "out", dtype="bfloat16", int8=True, examples=examples)
    rounded = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    graphs = Ranker.from_pretrained(tmp_path / "out", backend="onnx", device="cpu")
    both = [source.score([sentences[:2]], sentences) for source in (graphs, rounded)]
    np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-3)
    right = [rounded.rank(example.turns, example.choices, top_k=1)[0].text == example.label for example in examples]
    assert change.before == sum(right) / 3
    assert 0 <= change.after <= 1
    assert "| ONNX graphs | float32 and int8 |" in (tmp_path / "out" / "README.md").read_text()

    export_folder(make_ranker("poly", seed=1), tmp_path / "out")  # graphs of another model do not stay
    assert files_in(tmp_path / "out") == files_of(ranker.model, "README.md")


@pytest.mark.parametrize(
    "fails_at", ["polyencoder.checkpoint.safetensors.torch.save_file", "polyencoder.export.folder.write_model_card"]
)
@pytest.mark.parametrize("was_there", [False, True])
def test_an_export_that_fails_leaves_what_was_there(make_ranker, monkeypatch, tmp_path, fails_at, was_there):
    if was_there:
        export_folder(make_ranker("bi"), tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fail(*args, **options):
        raise OSError("disk full")

    monkeypatch.setattr(fails_at, fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(disk full\)"):
        export_folder(make_ranker("poly"), tmp_path / "out")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (tmp_path / "out").exists() == was_there


def test_a_folder_with_other_things_is_left_alone(make_ranker, tmp_path):
    ranker = make_ranker("bi")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    for message in ("file: is a file", "link: is a link to gone, which does not ex", "project: has other files in it"):
        with pytest.raises(CheckpointError, match=message):
            export_folder(ranker, tmp_path / message.partition(":")[0])
    (tmp_path / "project" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="project: holds an encoder"):
        export_folder(ranker, tmp_path / "project")
    assert (tmp_path / "project" / "README.md").read_text() == "mine"


def test_a_new_export_takes_the_place_of_the_earlier_one_alone(make_ranker, tmp_path):
    ranker, out = make_ranker("bi"), tmp_path / "out"
    export_folder(ranker, out)
    for name in ("onnx.json", "context.onnx", "candidates.int8.onnx", "mine.onnx", "notes.txt"):
        (out / name).touch()
    export_folder(ranker, out)
    assert files_in(out) == files_of(ranker.model, "README.md", "mine.onnx", "notes.txt")


def test_a_kill_between_two_files_never_leaves_a_mixture(make_ranker, tmp_path, sentences, killed_after):
    pytest.importorskip("onnxruntime")
    old, new = make_ranker("bi"), make_ranker("bi", seed=1, output_scaling=5.0)
    expected = [ranker.score([sentences[:1]], sentences) for ranker in (old, new)]
    for ranker, name in ((old, "old"), (new, "new")):
        export_folder(ranker, tmp_path / name, onnx=True)
    files = len(files_in(tmp_path / "new"))
    for renames in (0, 1, files // 2):  # the folder is renamed, then each file
        shutil.copytree(tmp_path / "old", out := tmp_path / f"out-{renames}")
        killed_after(renames, lambda out=out: _publish_copy(tmp_path / "new", out))
        for backend in ("torch", "onnx"):
            scores = Ranker.from_pretrained(out, backend=backend, device="cpu").score([sentences[:1]], sentences)
            np.testing.assert_allclose(scores, expected[renames > 0], rtol=1e-4, atol=1e-4)


def _publish_copy(source, target):
    with publishing_model(target) as staging:
        shutil.copytree(source, staging, dirs_exist_ok=True)


def test_what_killed_exports_left_goes(make_ranker, tmp_path, killed_after):
    ranker, out = make_ranker("bi"), tmp_path / "out"
    killed_after(0, lambda: export_folder(ranker, out))
    assert [path.suffix for path in out.iterdir()] == [".part"]
    export_folder(ranker, out, overwrite=False)  # holds no model
    assert files_in(out) == files_of(ranker.model, "README.md")
