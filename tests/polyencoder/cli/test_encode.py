"""`polyencoder encode`: the file that it writes, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import BertConfig, BertModel

from polyencoder.errors import ConfigError, InputError, UsageError
from polyencoder.ranker import Ranker
from tests.commands import run_command


@pytest.fixture
def ranker(make_ranker, tmp_path, sentences):
    ranker = make_ranker("convert")
    ranker.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    return ranker


def run(folder, *arguments):
    command = ["encode", folder / "texts.txt", "--no-progress", "--out", folder / "out.npy", *arguments]
    return run_command(*command)


@pytest.mark.parametrize("kind", ["pooled", "context", "candidate"])
def test_a_row_for_each_text(ranker, tmp_path, sentences, kind):
    result = run(tmp_path, "--model", tmp_path / "model", "--kind", kind, "--normalize", "--batch-size", 3)
    vectors = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(vectors, ranker.encode(sentences, kind=kind, normalize=True), rtol=1e-4, atol=1e-5)
    assert f"{len(sentences)} vectors of {vectors.shape[1]} numbers" in result.output


def test_candidates_are_read_as_an_index_reads_them(ranker, tmp_path):
    records = [{"_id": "1", "title": "my cat", "text": "it sleeps ."}, {"text": "hello .", "context": "a greeting"}]
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "out.npy"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    run_command("encode", corpus, "--model", tmp_path / "model", "--kind", "candidate", "--no-progress", "--out", out)
    expected = ranker.encode(["my cat it sleeps .", "hello ."], kind="candidate")
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-4, atol=1e-5)


def test_a_pre_trained_encoder_as_it_is(ranker, tmp_path, sentences, make_hf_tokenizer):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=64, **sizes)).save_pretrained(tmp_path / "bert")
    make_hf_tokenizer("bert").save_pretrained(tmp_path / "bert")
    run(tmp_path, "--backbone", tmp_path / "bert")
    expected = Ranker.from_backbone(tmp_path / "bert").encode(sentences)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ([], UsageError, "give --model, a ranker, or --backbone"),
        (["--model", "MODEL", "--backbone", "b"], ConfigError, "backbone is not read with model: give one of them"),
        (["--backbone", "b", "--backend", "onnx"], ConfigError, "backbone is not read with backend: give one of them"),
        (["--model", "MODEL", "--kind", "r_x"], ConfigError, "kind is 'r_x'"),
        (["--model", "MODEL", "--out", "vectors.txt"], ConfigError, "give the file the ending"),
        (["--model", "MODEL", "--out", "vectors.parquet"], ConfigError, "give --kind candidate"),
        (["--model", "MODEL", "EMPTY"], InputError, None),
    ],
)
def test_what_it_refuses(ranker, tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("" if "EMPTY" in arguments else "hi")
    options = [str(tmp_path / "model") if word == "MODEL" else word for word in arguments if word != "EMPTY"]
    with pytest.raises(error, match=message or "no text in it"):
        run(tmp_path, *options)
    assert not [*tmp_path.glob("*.npy"), *tmp_path.glob("*.parquet")]


def test_a_file_that_is_there_is_kept(ranker, tmp_path):
    (tmp_path / "out.npy").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        run(tmp_path, "--model", tmp_path / "model")
    assert (tmp_path / "out.npy").read_text() == "mine"
    run(tmp_path, "--model", tmp_path / "model", "--overwrite")
    assert len(np.load(tmp_path / "out.npy")) > 1
