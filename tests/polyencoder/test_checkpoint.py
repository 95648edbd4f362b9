from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from polyencoder import checkpoint
from polyencoder.checkpoint import check_folder, holds_encoder, holds_ranker, load_folder, load_weights
from polyencoder.config import DenseConfig
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError
from polyencoder.ranker import Ranker
from polyencoder.storage.names import CONFIG, MODULE_CONFIG, TOKENIZER, WEIGHTS
from tests.model_folders import files_in, files_of
from tests.parameters import mostly_long

NAMES = [CONFIG, WEIGHTS, TOKENIZER]


@pytest.fixture
def folder(make_ranker, tmp_path) -> Path:
    """A poly-encoder on disk."""
    make_ranker("poly").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def change_weights():
    """(folder, change) -> rewrites the weights after `change` has worked on their dictionary."""

    def rewrite(folder: Path, change) -> None:
        weights = safetensors.torch.load_file(folder / "polyencoder.safetensors")
        change(weights)
        safetensors.torch.save_file(weights, folder / "polyencoder.safetensors")

    return rewrite


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("bi", {}),
        ("bi", {"share_encoders": True, "reduction": "mean", "output_scaling": 0.5}),
        ("poly", {"codes_attention": "sqrt", "n_codes": 3}),
        ("poly", {"context_vectors": "first_n_last", "n_codes": 2, "poly_attention": "sqrt"}),
        ("cross", {"pair_start": True, "reduction": "mean_first", "reduction_outputs": 2}),
        ("cross", {"pair_start": "end", "dense": (DenseConfig(size=8, activation="tanh", norm_eps=0.1),)}),
    ],
)
def test_saved_and_loaded_is_the_same(make_ranker, no_network, tmp_path, sentences, architecture, fields):
    ranker = make_ranker(architecture, **fields)
    ranker.save_pretrained(tmp_path / "model")
    assert files_in(tmp_path / "model") == files_of(ranker.model)
    again = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert again.model.config == ranker.model.config
    assert again.text.compute_fingerprint() == ranker.text.compute_fingerprint()
    contexts = [sentences[:3], sentences[4:5]]
    assert np.array_equal(again.score(contexts, sentences), ranker.score(contexts, sentences))


@pytest.mark.parametrize("name", [WEIGHTS, "document_0_Transformer/model.safetensors"])
def test_a_damaged_file_of_weights_is_named(folder, name):
    check_folder(folder)
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}: damaged"):
        check_folder(folder)


def test_saving_again_writes_the_same(folder, tmp_path):
    Ranker.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert files_in(tmp_path / "again") == files_in(folder)
    for name in files_in(folder):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_loaded_model_is_ready_for_use(folder):
    model, _ = load_folder(folder)
    assert not any(module.training for module in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("step", NAMES)
def test_a_save_that_fails_leaves_the_old_model(folder, make_ranker, monkeypatch, sentences, step):
    """At whichever file the disk is full, it is the old model that is there, not a mixture of two."""
    before = Ranker.from_pretrained(folder).score([sentences[:1]], sentences)
    names = files_in(folder)
    write_text = Path.write_text

    def save_half(weights, path, metadata):
        Path(path).write_bytes(b"half of the weigh")
        raise OSError("No space left on device")

    def write_half(self, text, *arguments, **named):
        write_text(self, text[:10] if step in self.name else text, *arguments, **named)
        if step in self.name:
            raise OSError("No space left on device")

    if step == "polyencoder.safetensors":
        monkeypatch.setattr(safetensors.torch, "save_file", save_half)
    else:
        monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left"):
        make_ranker("bi", seed=1).save_pretrained(folder)
    monkeypatch.undo()
    assert files_in(folder) == names
    again = Ranker.from_pretrained(folder)
    assert again.model.config.architecture == "poly"
    assert np.array_equal(again.score([sentences[:1]], sentences), before)


@pytest.mark.slow
@mostly_long("renames", [0, 1, 2, 3, 6, 12, 18], quick=2)
def test_a_kill_between_the_renames_leaves_the_old_model_or_the_new_one(
    folder, make_ranker, sentences, renames, killed_after
):
    old, new = Ranker.from_pretrained(folder), make_ranker("poly", seed=1, output_scaling=5.0)
    killed_after(renames, lambda: new.save_pretrained(folder))
    expected = (new if renames else old).score([sentences[:1]], sentences)
    assert np.array_equal(Ranker.from_pretrained(folder).score([sentences[:1]], sentences), expected)


@pytest.mark.parametrize("name", ["polyencoder.json", "tokenizer.json"])
def test_the_files_of_two_models_are_not_taken_for_one(folder, make_ranker, tmp_path, name):
    make_ranker("poly", output_scaling=5.0).save_pretrained(tmp_path / "other")
    content = (tmp_path / "other" / name).read_bytes()
    (folder / name).write_bytes(content if name == "polyencoder.json" else content + b"\n")
    with pytest.raises(CheckpointError, match=rf"{name}: not the file that was saved with polyencoder.safetensors"):
        Ranker.from_pretrained(folder)


def test_a_model_that_is_saved_while_it_is_loaded_is_loaded_whole(folder, make_ranker, monkeypatch, sentences):
    """Its weights never meet the configuration of the model before it."""
    new = make_ranker("poly", seed=1, output_scaling=5.0)
    read_weights = checkpoint.read_weights

    def save_and_read(source):
        monkeypatch.undo()
        new.save_pretrained(folder)
        return read_weights(source)

    monkeypatch.setattr(checkpoint, "read_weights", save_and_read)
    loaded = Ranker.from_pretrained(folder)
    assert np.array_equal(loaded.score([sentences[:1]], sentences), new.score([sentences[:1]], sentences))


def test_of_two_that_save_at_once_one_waits(folder, make_ranker, monkeypatch, sentences):
    """Else the weights of the first would stand beside the configuration and tokenizer of the second."""
    other, second, rename = make_ranker("poly", seed=2), None, os.replace

    def renamed(source, target):
        nonlocal second
        rename(source, target)
        if second is None:  # the first one's weights have their name
            second = threading.Thread(target=other.save_pretrained, args=(folder,))
            second.start()
            second.join(timeout=0.5)
            assert second.is_alive()

    monkeypatch.setattr(os, "replace", renamed)
    make_ranker("bi", seed=1).save_pretrained(folder)
    second.join()
    assert np.array_equal(*(each.score(sentences[:1], sentences) for each in (Ranker.from_pretrained(folder), other)))


@pytest.mark.slow
def test_saving_over_another_model_replaces_it(folder, make_ranker, sentences):
    ranker = make_ranker("bi", seed=1)
    ranker.save_pretrained(folder)
    again = Ranker.from_pretrained(folder)
    assert np.array_equal(again.score([sentences[:1]], sentences), ranker.score([sentences[:1]], sentences))


def test_saving_where_a_file_is(make_ranker, tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(CheckpointError, match=r"file: is a file; give a folder"):
        make_ranker("bi").save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(CheckpointError, match="link: is a link to gone, which does not exist; give a folder"):
        make_ranker("bi").save_pretrained(tmp_path / "link")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"model: no {name} in it; a model folder has"):
        Ranker.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("codes.codes"), "codes.codes is missing$"),
        (lambda w: w.update({"linear.bias": torch.zeros(1)}), "linear.bias is not part of this model$"),
        (lambda w: w.update({"codes.codes": torch.zeros(5, 16)}), r"codes.codes has shape \[5, 16\], .* \[4, 16\]$"),
        (lambda w: w.update({"more": w.pop("codes.codes")}), r"codes.codes is missing \(and 1 more\)$"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change_weights, change, message):
    change_weights(folder, change)
    with pytest.raises(CheckpointError, match=f"model: the weights do not fit the model: {message}"):
        Ranker.from_pretrained(folder)


def test_weights_that_do_not_fit_change_nothing(make_model):
    model, other = make_model("poly"), make_model("poly", seed=1).state_dict()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other["codes.codes"] = torch.zeros(5, 16)
    with pytest.raises(CheckpointError):
        load_weights(model, other, origin="x")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("value", [3e38, -3e38, float("inf"), float("nan")])
def test_weights_whose_sum_is_infinite_load_if_each_is_finite(make_model, value):
    model = make_model("poly")
    weights = model.state_dict() | {"codes.codes": torch.full((4, 16), value)}
    if abs(value) < float("inf"):
        load_weights(model, weights, origin="x")
        assert torch.equal(model.state_dict()["codes.codes"], weights["codes.codes"])
    else:
        with pytest.raises(CheckpointError, match=r"x: 64 of the 64 numbers in codes\.codes"):
            load_weights(model, weights, origin="x")


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file(folder, name):
    content = (folder / name).read_bytes().rstrip()
    for length in (0, 1, 5, 100, len(content) // 2, -1):
        (folder / name).write_bytes(content[:length])
        with pytest.raises(PolyencoderError, match=f"{name}: ") as caught:
            Ranker.from_pretrained(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "polyencoder.json: unknown setting 'colour'"),
        ({"architecture": ...}, "polyencoder.json: not the configuration of a ranker"),
        ({"backbone": {"model_type": "bort"}}, "knows no model type 'bort'"),
        ({"architecture": "resnet50"}, "polyencoder.json: architecture is 'resnet50'; it must be one of bi, poly, c"),
        ({"architecture": "convert"}, "polyencoder.json: a convert model needs its sizes, `convert`"),
    ],
)
def test_a_configuration_that_cannot_be_used(folder, change_weights, edit_json, changes, message):
    change_weights(folder, lambda weights: None)  # without digests, so that this configuration may be theirs
    edit_json(folder / "polyencoder.json", **changes)
    with pytest.raises(ConfigError, match=message):
        Ranker.from_pretrained(folder)


def test_a_configuration_nested_without_end(folder):
    (folder / "polyencoder.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="polyencoder.json: not valid JSON"):
        Ranker.from_pretrained(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_in_the_folder_never_runs(folder, malicious_pickle, name):
    for protocol in (0, 2, 4):
        content, witness = malicious_pickle(protocol)
        (folder / name).write_bytes(content)
        with pytest.raises(PolyencoderError, match=f"{name}: "):
            Ranker.from_pretrained(folder)
        assert not witness.exists()


def test_what_holds_a_ranker(folder, backbone_folder, no_network, tmp_path):
    assert holds_ranker(folder)
    assert not holds_ranker(backbone_folder("bert"))
    for name in (tmp_path, tmp_path / "nothing", "someone/model", "no such name"):
        assert not holds_ranker(name)
    for content in (b"{", b"[]", b'{"architecture": "resnet50"}', b'{"architecture": []}', b"\xff", b"[" * 100_000):
        (folder / CONFIG).write_bytes(content)  # damaged, it is still none of another library's
        assert holds_ranker(folder)
        assert not holds_encoder(folder)
        with pytest.raises(PolyencoderError, match=CONFIG):
            Ranker.from_backbone(folder)
        (tmp_path / MODULE_CONFIG).write_bytes(content)
        assert not holds_ranker(tmp_path)


def test_a_folder_of_the_earlier_layout_is_named(folder):
    (folder / CONFIG).rename(folder / MODULE_CONFIG)
    assert holds_ranker(folder)
    for read in (load_folder, Ranker.from_pretrained):
        with pytest.raises(CheckpointError, match=r"model: .* earlier version.*export it again"):
            read(folder)
