"""Files of training's states, `model.file`: read, damaged, malicious, and of other programs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polyencoder.checkpoint import holds_ranker, read_model_file, read_states, write_states
from polyencoder.errors import CheckpointError, PolyencoderError
from polyencoder.ranker import Ranker


@pytest.fixture
def model_file(make_ranker, tmp_path) -> Path:
    """A poly-encoder as training saves it."""
    ranker = make_ranker("poly")
    path = tmp_path / "model.file"
    torch.save({"model": ranker.model.state_dict(), "ranker_config": ranker.model.config.to_json()}, path)
    Path(f"{path}.tokenizer.json").write_text(ranker.text.tokenizer.to_str(), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["model.file", "model.file.tokenizer.json"])
def test_a_pickle_beside_a_model_file_never_runs(model_file, malicious_pickle, name):
    for protocol in (0, 2, 4):
        content, witness = malicious_pickle(protocol)
        model_file.with_name(name).write_bytes(content)
        with pytest.raises(PolyencoderError, match=f"{name}: "):
            Ranker.from_pretrained(model_file)
        assert not witness.exists()


def test_a_pickle_inside_a_model_file_never_runs(model_file, malicious):
    """torch itself would write such a file of an object that comes with code."""
    makes_a_folder, witness = malicious
    states = torch.load(model_file, weights_only=True)
    torch.save(states | {"optimizer": makes_a_folder}, model_file)
    with pytest.raises(CheckpointError, match="model.file: damaged, or not a file of weights that can be read safely"):
        Ranker.from_pretrained(model_file)
    assert not witness.exists()
    torch.load(model_file, weights_only=False)  # the careless way to read it does run it: the test can fail
    assert witness.exists()


def test_a_model_file_gives_the_model_that_was_saved(model_file, make_ranker, no_network, sentences):
    assert holds_ranker(model_file)
    ranker = make_ranker("poly")
    again = Ranker.from_pretrained(model_file, device="cpu")
    assert again.model.config == ranker.model.config
    assert np.array_equal(again.score([sentences[:2]], sentences), ranker.score([sentences[:2]], sentences))


def test_a_model_file_keeps_its_other_states(model_file):
    states = torch.load(model_file, weights_only=True)
    torch.save(states | {"number_training_updates": 7, "optimizer": {"lr": 0.1}}, model_file)
    config, states = read_model_file(model_file)
    assert config.architecture == "poly"
    assert states["number_training_updates"] == 7
    assert states["optimizer"] == {"lr": 0.1}


def test_a_model_file_without_its_tokenizer(model_file):
    Path(f"{model_file}.tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"model.file.tokenizer.json: the model's tokenizer is missing; it bel"):
        Ranker.from_pretrained(model_file)


def test_a_truncated_model_file(model_file):
    content = model_file.read_bytes()
    for length in (0, 1, 100, len(content) // 2, -1):
        model_file.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="model.file: damaged, or not a") as caught:
            Ranker.from_pretrained(model_file)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "states",
    [
        *({"model": {}}, {"ranker_config": "{}"}, {"model": {}, "ranker_config": 3}, {"model": 3, "ranker_config": ""}),
        *([], 3),
    ],
)
def test_another_programs_model_file(model_file, states):
    torch.save(states, model_file)
    with pytest.raises(CheckpointError, match="model.file: not a model file of biencoder, polyencoder or crossencoder"):
        Ranker.from_pretrained(model_file)


def test_an_interrupt_while_a_model_file_is_written(tmp_path, monkeypatch):
    """torch's writer of archives reports it as an error of its own."""
    write_states(tmp_path / "model", {"model": {"a": torch.zeros(1)}})

    def interrupted(states, file):
        def interrupt(data):
            raise KeyboardInterrupt

        save(states, SimpleNamespace(write=interrupt, flush=file.flush))

    save = torch.save
    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_states(tmp_path / "model", {"model": {"a": torch.ones(1)}})
    assert read_states(tmp_path / "model")["model"]["a"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_no_model_file(tmp_path):
    with pytest.raises(CheckpointError, match="nothing: no such model file"):
        read_model_file(tmp_path / "nothing")


def test_a_model_file_of_half_precision_is_read_in_full(model_file):
    """Weights may be stored small; a model computes in float32."""
    states = torch.load(model_file, weights_only=True)
    states["model"] = {name: tensor.bfloat16() for name, tensor in states["model"].items()}
    torch.save(states, model_file)
    ranker = Ranker.from_pretrained(model_file)
    assert {parameter.dtype for parameter in ranker.model.parameters()} == {torch.float32}
