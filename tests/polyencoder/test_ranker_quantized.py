"""A quantized ConveRT as a ranker: it ranks as before it was saved, in a file as small as the paper says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from polyencoder.checkpoint import load_model_file
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder
from tests.commands import run_command
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CONTEXTS = [["hello !", "do you like dogs ?"], "hi", ["what do you do for a living ? " * 30, "ok"], "漢字 ?"]
WORDS = "encoder.embeddings.words.weight"


@pytest.fixture
def ranker(make_convert_ranker) -> Ranker:
    """One of several contexts that learns, and whose weights are in float32."""
    return make_convert_ranker(quantized=True, extra_contexts=10)


def run(*arguments: object) -> str:
    return run_command(*arguments).stdout


def test_a_folder_ranks_as_before(ranker, sentences, tmp_path):
    expected = torch.as_tensor(ranker.score(CONTEXTS, sentences))
    ranker.save_pretrained(tmp_path / "model")
    again = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert torch.equal(torch.as_tensor(again.score(CONTEXTS, sentences)), expected)
    assert torch.equal(torch.as_tensor(ranker.score(CONTEXTS, sentences)), expected)  # which saving has not changed
    assert not ranker.model.is_for_inference
    again.save_pretrained(tmp_path / "again")
    files = [(tmp_path / folder / "polyencoder.safetensors").read_bytes() for folder in ("model", "again")]
    assert files[0] == files[1]


@mostly_long(("extra", "megabytes"), [(0, 60), (10, 75)], quick=1)
def test_the_file_is_small_and_never_a_table_of_float32(make_convert_ranker, tmp_path, extra, megabytes):
    """With the paper's 31,476 subwords and 1,000 buckets."""
    sizes = ConvertConfig(vocab_size=31_476 + 1_000, multi_context=extra > 0)
    layout = convert_text(extra_contexts=extra)
    tokenizer = make_convert_ranker().text.tokenizer
    with torch.device("meta"):  # drawing as many numbers takes long
        model = build_model(convert_ranker(sizes, layout))
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(0.01)
    model.quantize()
    Ranker(model, TextEncoder(tokenizer, layout), device="cpu").save_pretrained(tmp_path)
    assert (megabytes - 2) * 1e6 < (tmp_path / "polyencoder.safetensors").stat().st_size <= megabytes * 1e6
    again = Ranker.from_pretrained(tmp_path, device="cpu").model
    table = again.state_dict()[WORDS]
    assert (table.dtype, table.shape) == (torch.uint8, (32_476, 512))
    assert max(tensor.numel() for tensor in again.state_dict().values() if tensor.is_floating_point()) < 2**21


def test_indexes_and_calibrations_are_of_both_forms(ranker, make_ranker, sentences, tmp_path):
    index = ranker.index(sentences, tmp_path / "index")
    ranker.save_pretrained(tmp_path / "model")
    examples = [{"context": "hi", "response": sentences[0], "candidates": sentences}] * 10
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    run("calibrate", "--model", tmp_path / "model", "--data", tmp_path / "examples.jsonl")
    again = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert again.calibration is not None
    for context in CONTEXTS:
        hits = again.search(context, tmp_path / "index", top_k=3)
        assert [hit.text for hit in hits] == [hit.text for hit in ranker.search(context, index, top_k=3)]
        assert [hit.text for hit in hits] == [ranked.text for ranked in again.rank(context, sentences, top_k=3)]
    hits = again.search("hi", tmp_path / "index", top_k=2, rerank=make_ranker("cross"), rerank_k=4)
    assert all(hit.rerank_score is not None for hit in hits)

    ranker.calibration = again.calibration  # goes with what it is saved with
    ranker.save_pretrained(tmp_path / "calibrated")
    assert Ranker.from_pretrained(tmp_path / "calibrated", device="cpu").calibration is not None
    report = json.loads(run("evaluate", "--model", tmp_path / "model", "--data", tmp_path / "examples.jsonl", "--json"))
    assert 0 <= report["hits@1"] <= 1


def test_a_model_file_has_the_weights_that_learn(ranker, sentences, tmp_path):
    states = {"model": ranker.model.state_dict(), "ranker_config": ranker.model.config.to_json()}
    torch.save(states, tmp_path / "model")
    Path(f"{tmp_path / 'model'}.tokenizer.json").write_text(ranker.text.tokenizer.to_str(), encoding="utf-8")
    model, _ = load_model_file(tmp_path / "model")
    assert model.is_for_inference
    again = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert np.array_equal(again.score(CONTEXTS, sentences), ranker.score(CONTEXTS, sentences))


def test_a_model_that_was_trained_in_float32_is_quantized(make_convert_ranker, sentences, tmp_path):
    plain = make_convert_ranker()
    plain.save_pretrained(tmp_path / "plain")
    output = run("export", tmp_path / "plain", tmp_path / "small", "--quantize")
    assert "polyencoder.safetensors" in output
    small = Ranker.from_pretrained(tmp_path / "small", device="cpu")
    assert small.model.state_dict()[WORDS].dtype == torch.uint8
    scores = torch.as_tensor(plain.score(CONTEXTS, sentences))
    torch.testing.assert_close(
        torch.as_tensor(small.score(CONTEXTS, sentences)), scores, rtol=0, atol=0.02 * float(small.model.scale())
    )
    assert "in 8 bits" in (tmp_path / "small" / "README.md").read_text()
    run("export", tmp_path / "small", tmp_path / "again")  # a folder of an earlier export
    again = Ranker.from_pretrained(tmp_path / "again", device="cpu")
    assert np.array_equal(again.score(CONTEXTS, sentences), small.score(CONTEXTS, sentences))


def test_what_cannot_be(ranker, make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "bi")
    with pytest.raises(ConfigError, match="a bi-encoder cannot be quantized: only a ConveRT can"):
        run("export", tmp_path / "bi", tmp_path / "out", "--quantize")
    with pytest.raises(ConfigError, match="stored in 8 bits and float16: leave dtype out"):
        ranker.save_pretrained(tmp_path / "model", dtype="bfloat16")
    assert not (tmp_path / "model").exists()

    ranker.save_pretrained(tmp_path / "model")
    weights = safetensors.torch.load_file(tmp_path / "model" / "polyencoder.safetensors")
    weights["skip.weight"] = weights["skip.weight"].to(torch.uint8)
    safetensors.torch.save_file(weights, tmp_path / "model" / "polyencoder.safetensors")
    with pytest.raises(CheckpointError, match=r"skip.weight has numbers of the type uint8, the model needs float32"):
        Ranker.from_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "polyencoder.json").read_text())
    del config["convert"]["quantized"]
    (tmp_path / "model" / "polyencoder.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"words\.(scale|zero_point) is not part of this model"):
        Ranker.from_pretrained(tmp_path / "model")
