"""`polyencoder train` and `evaluate`: from a file of pairs to a model folder, without ParlAI."""

from __future__ import annotations

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from polyencoder import Ranker
from polyencoder.cli.main import app
from polyencoder.cli.train import HELP
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.training.settings import RunSettings

# words that the tiny tokenizer knows
THINGS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]
LR = 0.01
KINDS = ["today", "great", "fine", "high", "two"]


@pytest.fixture
def run():
    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


@pytest.fixture
def pairs(tmp_path):
    """Files in which the right response repeats two words of the context."""
    records = [
        {"context": ["hello !", f"do you like {thing} {kind} ?"], "response": f"my {thing} is {kind} ."}
        for thing in THINGS
        for kind in KINDS
    ]
    for name, part in (("train", records), ("valid", records[::5])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    return tmp_path


@pytest.fixture
def arguments(pairs, backbone_folder):
    return [
        *("train", "--backbone", backbone_folder("bert"), "--train", pairs / "train.jsonl"),
        *("--valid", pairs / "valid.jsonl", "--out", pairs / "out", "--batch-size", 10, "--learning-rate", LR),
        *(
            "--text-truncate",
            24,
            "--label-truncate",
            16,
            "--n-codes",
            4,
            "--reduction",
            "mean",
            "--fine-tuned",
            "all",
            "--device",
            "cpu",
        ),
    ]


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_a_model_that_can_be_used(run, arguments, pairs, architecture):
    length = ["--epochs", 2] if architecture == "cross" else ["--epochs", 30, "--patience", 100]
    output = run(*arguments, "--architecture", architecture, *length)
    assert "before training" in output
    assert "training gained" in output
    ranker = Ranker.from_pretrained(pairs / "out", device="cpu")
    assert ranker.model.config.architecture == architecture
    assert "`--learning-rate` | `0.01`" in (pairs / "out" / "README.md").read_text()
    asked = ["--data", pairs / "valid.jsonl", "--json", "--num-negatives", 9]
    report = json.loads(run("evaluate", "--model", pairs / "out", *asked))
    assert report["examples"] == report["drawn"] == 10
    assert report["loss"] > 0
    if architecture != "cross":  # which learns too slowly for a test
        assert report["hits@1"] > 0.4


def test_it_goes_on_where_it_was(run, arguments, pairs):
    run(*arguments, "--epochs", 2, "--architecture", "bi")
    weights = (pairs / "out" / "model.safetensors").read_bytes()
    output = run(*arguments, "--epochs", 2, "--architecture", "bi")
    assert (pairs / "out" / "model.safetensors").read_bytes() == weights
    assert "training gained" in output
    with pytest.raises(CheckpointError, match=r"was begun with epochs 2\.0, not 3\.0"):
        run(*arguments, "--epochs", 3, "--architecture", "bi")


def test_a_yaml_file_holds_settings_and_flags_go_before_it(run, arguments, pairs):
    (pairs / "run.yaml").write_text("architecture: bi\nepochs: 1\nseed: 7\nlearning-rate: 1.0\n")
    run(*arguments, "--config", pairs / "run.yaml")
    settings = json.loads(json.dumps(Ranker.from_pretrained(pairs / "out", device="cpu").model.config.architecture))
    assert settings == "bi"
    card = (pairs / "out" / "README.md").read_text()
    assert "`0.01`" in card  # the flag, not the file's


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3\n", "unknown setting 'epoch'; did you mean 'epochs'"),
        ("- 3\n", "must hold `name: value` lines"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_yaml_file_that_cannot_be_used(run, arguments, pairs, text, message):
    (pairs / "run.yaml").write_text(text)
    with pytest.raises((ConfigError, InputError), match=message):
        run(*arguments, "--config", pairs / "run.yaml")


def test_hard_negatives_distillation_and_held_out_data(run, arguments, pairs, backbone_folder):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    valid = arguments.index("--valid")
    others = [*arguments[:valid], *arguments[valid + 2 :]]
    others[others.index("--out") + 1] = pairs / "student"
    flags = ["--teacher", pairs / "out", "--hard-negatives", 2, "--hard-negatives-every", 3, "--epochs", 2]
    run(*others, *flags, "--architecture", "poly")
    assert (pairs / "student" / "training" / "teacher.sqlite").is_file()


def test_every_setting_has_a_flag_and_every_flag_a_word():
    fields = {field.name for field in dataclasses.fields(RunSettings)}
    assert {name for panel in HELP.values() for name in panel} == fields


def test_a_response_alone_among_its_candidates_is_no_exam(run, arguments, pairs):
    run(*arguments, "--architecture", "bi", "--epochs", 1)
    (pairs / "one.jsonl").write_text('{"context": "hi", "response": "ho", "candidates": ["ho"]}\n')
    with pytest.raises(InputError, match="is its only candidate"):
        run("evaluate", "--model", pairs / "out", "--data", pairs / "one.jsonl", "--num-negatives", 1)
