"""Quantization-aware training: the ranges are part of a run, and what was trained is what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from polyencoder.data.example import Example
from polyencoder.errors import ConfigError
from polyencoder.modeling.convert.quantization import QuantizationAwareEmbedding
from polyencoder.ranker import Ranker
from polyencoder.settings.training import OptimizerConfig
from polyencoder.training import TrainSettings, train_ranker
from polyencoder.training.precision import Precision
from polyencoder.training.run import build_training_config
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import CONVERT, PLAIN, WORDS

pytestmark = pytest.mark.slow

EXAMPLES = [Example(["hello !", f"do you like {word} ?"], f"i like {word} .") for word in WORDS]
CONFIG = replace(PLAIN, loss_scale=128.0)


@pytest.fixture
def make_quantized(make_convert_ranker):
    """(**fields) -> a tiny ranker that learns quantization-aware, with a range that follows every second batch.

    Of several contexts, whose network is one more beside those of a single one.
    """

    def make(**fields) -> Ranker:
        defaults = {"quantized": True, "quantization_update": 2, "extra_contexts": 3}
        return make_convert_ranker(**(defaults | fields))

    return make


def states(ranker: Ranker) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in ranker.model.state_dict().items()}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert torch.equal(tensor, expected[name]), name


def test_the_range_grows_with_what_is_trained(make_quantized):
    ranker = make_quantized()
    words = ranker.model.encoder.embeddings.words
    assert isinstance(words, QuantizationAwareEmbedding)
    before = float(words.scale)
    Trainer(
        ranker,
        replace(CONFIG, max_updates=20, optimizer=OptimizerConfig(name="adamw", learning_rate=0.1)),
        train=EXAMPLES,
    ).fit()
    assert float(words.scale) > 1.2 * before
    lowest, highest = words.range.dequantize(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    assert lowest < float(words.weight.min().detach()) < float(words.weight.max().detach()) < highest


def test_gradient_caching_learns_the_same(make_quantized):
    plain, cached = (make_quantized(text={"text_truncate": 12}) for _ in range(2))  # a batch has more than one piece
    Trainer(plain, CONFIG, train=EXAMPLES).fit()
    Trainer(cached, replace(CONFIG, grad_cache=1), train=EXAMPLES).fit()
    assert not torch.equal(plain.model.skip.weight, cached.model.skip.weight)  # they were rounded in another order
    for (name, value), other in zip(plain.model.state_dict().items(), cached.model.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-5, msg=name)


def test_processes_have_equal_ranges(make_quantized, in_processes):
    """Two with half of each batch, the second with another range at first."""

    def run(rank: int = 0, count: int = 1):
        ranker = make_quantized(seed=rank)
        Trainer(ranker, replace(CONFIG, batch_size=4 // count), train=EXAMPLES).fit()
        return states(ranker)

    first, second = in_processes(lambda rank: run(rank, 2))
    assert_same(first, second)
    for name, tensor in run().items():
        torch.testing.assert_close(first[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_scaled_loss_has_the_same_gradients(make_convert_ranker):
    """128 is a power of two: in float32 nothing is rounded."""
    scaled, plain = make_convert_ranker(), make_convert_ranker()
    config = replace(CONFIG, accumulate=2, clip=0.01)
    Trainer(scaled, config, train=EXAMPLES).fit()
    Trainer(plain, replace(config, loss_scale=None), train=EXAMPLES).fit()
    assert_same(states(scaled), states(plain))


def test_a_fixed_scale_takes_the_place_of_one_that_is_tried():
    fixed = Precision("float32", torch.device("cpu"), loss_scale=128.0)
    weight = torch.nn.Parameter(torch.ones(2))
    fixed.backward(weight.sum())
    assert weight.grad.tolist() == [128.0, 128.0]
    fixed.unscale(torch.optim.SGD([weight], lr=1.0))
    assert weight.grad.tolist() == [1.0, 1.0]
    assert not fixed.scales


def test_weights_that_were_rounded_for_good_do_not_learn(make_quantized):
    ranker = make_quantized()
    ranker.model.prepare_for_inference()
    with pytest.raises(ConfigError, match="rounded for inference: call `prepare_for_training` of the model"):
        Trainer(ranker, CONFIG, train=EXAMPLES)
    ranker.model.prepare_for_training()
    before = states(ranker)
    Trainer(ranker, CONFIG, train=EXAMPLES).fit()
    words = "encoder.embeddings.words.weight"
    assert not torch.equal(states(ranker)[words], before[words])


# ---- from files


@pytest.fixture
def make_settings(tmp_path, vocabulary):
    """(out, **settings) -> the settings of a small run over a file that this writes."""
    records = [{"context": example.turns, "response": example.label} for example in EXAMPLES]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    files = {"train": str(tmp_path / "train.jsonl"), "valid": str(tmp_path / "train.jsonl"), "device": "cpu"}

    def make(out: str, **fields) -> TrainSettings:
        start = {} if "init" in fields else {"vocabulary": str(vocabulary), **CONVERT}
        defaults = {"architecture": "convert", "batch_size": 4, "max_updates": 8, "patience": None}
        defaults |= {"num_negatives": 3, "evaluations": 0.2}
        return TrainSettings(**(files | defaults | start | {"out": str(tmp_path / out)} | fields))

    return make


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "polyencoder.safetensors")


def test_a_quantized_model_is_kept_and_goes_on(make_settings, tmp_path):
    train_ranker(make_settings("first", quantization_aware=True, quantization_update=2, extra_contexts=3))
    saved = weights_of(tmp_path / "first")
    words = "encoder.embeddings.words.weight"
    assert saved[words].dtype == torch.uint8
    scale = saved[words.replace("weight", "scale")]
    assert scale.dtype == torch.float32
    rest = {name: tensor for name, tensor in saved.items() if ".words." not in name and tensor.is_floating_point()}
    assert {tensor.dtype for tensor in rest.values()} == {torch.float16}
    assert "in 8 bits" in (tmp_path / "first" / "README.md").read_text()

    steps = {"optimizer": "adamw", "learning_rate": 0.05}  # large enough for codes to change
    train_ranker(make_settings("second", init=str(tmp_path / "first"), **steps))
    again = weights_of(tmp_path / "second")
    assert again[words].dtype == torch.uint8
    # the model before training may be the better one, so that it is in the folder; the last one is in the checkpoint
    last = torch.load(tmp_path / "second" / "training" / "checkpoint.pt", weights_only=True)["run"]["model"]
    assert not torch.equal(last[words.replace("weight", "scale")], scale)
    config = json.loads((tmp_path / "second" / "polyencoder.json").read_text())
    assert config["convert"]["quantized"] is True
    assert config["convert"]["quantization_update"] == 2


def test_a_model_in_float32_goes_on_quantized(make_settings, make_convert_ranker, tmp_path):
    make_convert_ranker().save_pretrained(tmp_path / "first")
    train_ranker(make_settings("second", init=str(tmp_path / "first"), quantization_aware=True, quantization_update=3))
    model = Ranker.from_pretrained(tmp_path / "second", device="cpu").model
    assert model.is_for_inference
    assert model.sizes.quantization_update == 3


def test_what_does_not_go_together(make_settings, make_convert_ranker, tmp_path):
    make_convert_ranker(quantized=True).save_pretrained(tmp_path / "first")
    make_convert_ranker().save_pretrained(tmp_path / "plain")
    with pytest.raises(ConfigError, match="quantization_update is read only with quantization_aware"):
        make_settings("out", quantization_update=3)
    with pytest.raises(ConfigError, match="is quantized, which cannot be undone: leave quantization_aware out"):
        train_ranker(make_settings("second", init=str(tmp_path / "first"), quantization_aware=False))
    with pytest.raises(ConfigError, match="is not quantized: add quantization_aware"):
        train_ranker(make_settings("second", init=str(tmp_path / "plain"), quantization_update=3))
    with pytest.raises(ConfigError, match="quantization_aware is read only where architecture is convert, not bi"):
        TrainSettings(train="a", out="b", architecture="bi", backbone="c", quantization_aware=True)
    with pytest.raises(ConfigError, match="quantization_update is 0; it must be at least 1"):
        make_settings("third", quantization_aware=True, quantization_update=0)


def test_its_numbers_are_the_papers(make_settings, make_quantized, make_convert_ranker, monkeypatch):
    settings = make_settings("out", quantization_aware=True)
    assert build_training_config(settings, make_quantized()).loss_scale == 128.0
    assert build_training_config(settings, make_quantized()).precision == "float32"
    assert build_training_config(settings, make_convert_ranker()).loss_scale is None
    on_gpu = make_quantized()
    monkeypatch.setattr(type(on_gpu), "device", torch.device("cuda"))
    assert build_training_config(settings, on_gpu).precision == "float16"
    settings = make_settings("out", quantization_aware=True, precision="float32")
    assert build_training_config(settings, on_gpu).precision == "float32"
