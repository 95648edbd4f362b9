"""`polyencoder export`: what it prints and writes, and what it says about arguments that cannot be used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.ranker import Ranker
from tests.commands import command_fails, run_command
from tests.forked import forgetting
from tests.model_folders import files_in, files_of

pytestmark = pytest.mark.slow


@pytest.fixture
def run():
    """(*arguments) -> what `polyencoder export` prints."""

    def call(*arguments: object) -> str:
        return run_command("export", *arguments).stdout

    return call


def test_shorter_vectors(run, make_ranker, sentences, tmp_path):
    ranker = make_ranker("bi")
    ranker.save_pretrained(tmp_path / "whole")
    run(tmp_path / "whole", tmp_path / "short", "--vector-dim", "5", "--onnx")
    assert "their first 5 dimensions" in (tmp_path / "short" / "README.md").read_text()
    expected = ranker.encode_candidates(sentences)[:, :5]
    for backend in ("torch", "onnx"):
        short = Ranker.from_pretrained(tmp_path / "short", device="cpu", backend=backend)
        np.testing.assert_allclose(short.encode_candidates(sentences), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="this ranker is ONNX graphs"):
        short.shortened(3)
    many = ("export", tmp_path / "whole", tmp_path / "no", "--vector-dim", "1000")
    command_fails(ConfigError, "vector_dim is 1000, but the model.s vectors have", *many)
    assert not (tmp_path / "no").exists()


def test_shorter_vectors_that_were_not_trained(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "whole")

    def warning(dim: int) -> str:
        return run_command("export", tmp_path / "whole", tmp_path / "short", "--vector-dim", dim).stderr

    assert "whole has no record of a training for its first 5 dimensions (--matryoshka)" in warning(5)
    assert warning(16) == "", "all of them"
    (tmp_path / "whole" / "README.md").write_text("| `--matryoshka` | `(8, 5)` |\n")
    assert warning(5) == ""
    assert "its first 4 dimensions" in warning(4)
    (tmp_path / "whole.opt").write_text('{"override": {"matryoshka": "4"}}')
    assert warning(4) == ""


def test_it_lists_what_it_wrote(run, make_ranker, tmp_path):
    ranker = make_ranker("bi")
    ranker.save_pretrained(tmp_path / "whole")
    run(tmp_path / "whole", tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    lines = run(tmp_path / "whole", tmp_path / "out").splitlines()
    listed = [str(Path(line.split()[0]).relative_to(tmp_path / "out")) for line in lines]
    assert listed == files_of(ranker.model, "README.md")


def test_the_model_of_a_run_is_not_replaced(make_ranker, tmp_path):
    for name in ("run", "other"):
        make_ranker("bi").save_pretrained(tmp_path / name)
    (tmp_path / "run" / "training").mkdir()
    (tmp_path / "run" / "training" / "run.json").write_text("{}")
    before = (tmp_path / "run" / "polyencoder.safetensors").read_bytes()
    for source in ("run", "other"):
        command = ("export", tmp_path / source, tmp_path / "run", "--dtype", "float16")
        command_fails(ConfigError, "run: holds a training run, whose model an export would replace", *command)
    assert (tmp_path / "run" / "polyencoder.safetensors").read_bytes() == before


@pytest.fixture
def ranker(make_ranker) -> Ranker:
    return make_ranker("poly")


@pytest.fixture
def model_file(ranker, tmp_path) -> Path:
    """A poly-encoder as training saves it, with what ParlAI keeps beside it."""
    path = tmp_path / "model"
    torch.save({"model": ranker.model.state_dict(), "ranker_config": ranker.model.config.to_json()}, path)
    Path(f"{path}.tokenizer.json").write_text(ranker.text.tokenizer.to_str(), encoding="utf-8")
    Path(f"{path}.opt").write_text(json.dumps({"model": "polyencoder", "task": "selection:convai2", "batchsize": 16}))
    Path(f"{path}.valid").write_text('valid:\n{"R20@1": 0.8367, "mrr": 0.9}\n')
    return path


@pytest.fixture
def examples(tmp_path, sentences) -> Path:
    """Examples in JSON lines: contexts as text or turns, the response among the candidates or not."""
    path = tmp_path / "examples.jsonl"
    rows = [
        {"context": sentences[0], "response": sentences[1], "candidates": sentences[1:6]},
        {"context": sentences[:2], "response": sentences[2], "candidates": sentences[3:7], "more": 1},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_reranker_of_the_hub(run, make_reranker, sentences, tmp_path):
    """It gets a new card, as our models do: the reranker's says how another library loads it."""
    source = shutil.copytree(make_reranker("roberta"), tmp_path / "theirs")
    (source / "README.md").write_text("CrossEncoder")
    run(source, tmp_path / "ours", "--onnx")
    card = (tmp_path / "ours" / "README.md").read_text()
    assert 'from_pretrained("ours")' in card
    assert "CrossEncoder" not in card
    contexts, candidates = ["how are you ?"], ["i am fine .", "two dogs", " ".join(sentences * 3)]
    expected = Ranker.load(source, device="cpu").score(contexts, candidates)
    for backend in ("torch", "onnx"):
        ours = Ranker.from_pretrained(tmp_path / "ours", backend=backend, device="cpu")
        np.testing.assert_allclose(ours.score(contexts, candidates), expected, rtol=1e-4, atol=1e-4)


def test_a_model_file(run, ranker, model_file, tmp_path, sentences):
    output = run(model_file, tmp_path / "out", "--dtype", "bfloat16")
    listed = [str(Path(line.split()[0]).relative_to(tmp_path / "out")) for line in output.splitlines()]
    assert listed == files_of(ranker.model, "README.md")
    again = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    expected, actual = (scorer.score([sentences[:2]], sentences) for scorer in (ranker, again))
    assert abs(actual - expected).max() < 5e-2 * abs(expected).max()
    card = (tmp_path / "out" / "README.md").read_text()
    facts = ("selection:convai2", "0.8367", "`--batchsize`")
    assert all(fact in card for fact in (*facts, "bfloat16", "# out"))

    run(tmp_path / "out", tmp_path / "again")  # a folder of an earlier export keeps what is known of its training
    again = (tmp_path / "again" / "README.md").read_text()
    assert all(fact in again for fact in (*facts, "stored in float32", "# again", 'from_pretrained("again")'))
    assert "bfloat16" not in again.partition("## Training")[0]


@pytest.mark.usefixtures("forked_commands")
def test_the_command_needs_no_parlai(ranker, model_file, tmp_path):
    code = forgetting("parlai", "polyencoder") + "from polyencoder.cli.main import main\n"
    code += "try: main()\nfinally: "
    code += "assert not any(name.startswith('parlai') for name in sys.modules)"
    command = [sys.executable, "-c", code, "export", str(model_file), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert files_in(tmp_path / "out") == files_of(ranker.model, "README.md")


def test_graphs(run, ranker, model_file, examples, tmp_path, sentences):
    pytest.importorskip("onnxruntime")
    graphs = {f"{name}{kind}.onnx" for name in ("context", "candidates") for kind in ("", ".int8")} | {"onnx.json"}
    output = run(model_file, tmp_path / "out", "--int8", "--check", examples)
    assert files_in(tmp_path / "out") == files_of(ranker.model, "README.md", *graphs)
    last = output.splitlines()[-1]
    assert last.startswith("R5@1 on 2 examples: ")
    before, after = (float(word) for word in last.split() if word.replace(".", "").isdigit() and "." in word)
    assert last.endswith(f"({after - before:+.2f} points)")
    expected = Ranker.from_pretrained(tmp_path / "out", device="cpu").score(["hello"], sentences)
    for backend, tolerance in (("onnx", 1e-4), ("onnx-int8", 0.5)):
        exported = Ranker.from_pretrained(tmp_path / "out", backend=backend, device="cpu")
        assert abs(exported.score(["hello"], sentences) - expected).max() < tolerance * abs(expected).max()


def test_an_export_of_an_export_says_what_it_has(run, ranker, model_file, tmp_path):
    """The text that somebody wrote into the card stays, too."""
    pytest.importorskip("onnxruntime")
    run(model_file, tmp_path / "out")
    with (tmp_path / "out" / "README.md").open("a") as card:
        card.write("\n## Limits\n\n# out\n\nNone.\n")
    run(tmp_path / "out", tmp_path / "graphs", "--onnx")
    graphs = ("context.onnx", "candidates.onnx", "onnx.json")
    assert files_in(tmp_path / "graphs") == files_of(ranker.model, "README.md", *graphs)
    card = (tmp_path / "graphs" / "README.md").read_text()
    assert "| ONNX graphs | float32 |" in card
    assert "## Limits" in card
    run(tmp_path / "graphs", tmp_path / "small", "--dtype", "float16")
    card = (tmp_path / "small" / "README.md").read_text()
    assert "ONNX" not in card
    assert "stored in float16" in card
    assert "## Limits" in card


def fails(error: type[Exception], match: str, *arguments: object) -> None:
    command_fails(error, match, "export", *arguments)


def test_options_that_cannot_be_used(model_file, examples, tmp_path):
    for error, message, options in [
        (ConfigError, "dtype is 'int8'; it must be one of float32, float16, bfloat16", ["--dtype", "int8"]),
        (ConfigError, "check is read only with int8: give that too", ["--check", "FILE"]),
        (ConfigError, "context is read only with check: give that too", ["--context", "said"]),
        (InputError, "nowhere.jsonl", ["--int8", "--check", "nowhere.jsonl"]),
    ]:
        words = [examples if option == "FILE" else option for option in options]
        fails(error, message, model_file, tmp_path / "out", *words)
        assert not (tmp_path / "out").exists()


def test_examples_that_cannot_be_used(model_file, tmp_path):
    for line, message in [
        ("", "has no examples"),
        ('{"context": "hi", "response": "ho"}', r"bad.jsonl: has no 'candidates', and no second response"),
        ('{"context": "hi", "response": ["ho"], "candidates": ["ho"]}', r"line 1: the response is list, not a text"),
    ]:
        (tmp_path / "bad.jsonl").write_text(line + "\n" if line else "")
        fails(InputError, message, model_file, tmp_path / "out", "--int8", "--check", tmp_path / "bad.jsonl")
        assert not (tmp_path / "out").exists()


def test_models_that_are_not_there(tmp_path, no_network):
    fails(CheckpointError, "no such folder or file", tmp_path / "nothing", tmp_path / "out")
