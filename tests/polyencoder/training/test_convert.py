"""Training a ConveRT from files: what suits it is the default, and its folder works like any ranker's."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from polyencoder.cli.main import app
from polyencoder.errors import ConfigError
from polyencoder.ranker import Ranker
from polyencoder.training import RunSettings, train_ranker

THINGS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "attention_limits": "2,8", "scale_batches": 10}


@pytest.fixture
def make_settings(tmp_path, vocabulary):
    """(**settings) -> those of a small run over files that this writes."""
    records = [
        {"context": ["hello !", f"do you like the {thing} {i} ?"], "response": f"the {thing} is great , {i} ."}
        for thing in THINGS
        for i in range(3)
    ]
    for name, part in (("train", records), ("valid", records[::3])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    files = {"train": str(tmp_path / "train.jsonl"), "valid": str(tmp_path / "valid.jsonl"), "device": "cpu"}
    defaults = {**files, "out": str(tmp_path / "out"), "architecture": "convert", "batch_size": 10, "patience": None}

    def make(**fields) -> RunSettings:
        start = {} if "init" in fields else {"vocabulary": str(vocabulary), **SIZES}
        return RunSettings(**{**defaults, **start, **fields})

    return make


def test_the_papers_numbers_are_the_defaults():
    training = RunSettings(train="a", out="b", architecture="convert", vocabulary="c").training()
    assert (training.batch_size, training.clip, training.epochs) == (512, None, 3.0)
    optimizer, schedule = training.optimizer, training.schedule
    assert (optimizer.name, optimizer.learning_rate, optimizer.rho, optimizer.weight_decay) == (
        "adadelta",
        1.0,
        0.9,
        1e-5,
    )
    assert optimizer.embedding_clip == 1.0
    assert (schedule.name, schedule.warmup_updates, schedule.final) == ("cosine", 0, 0.001)

    settings = RunSettings(train="a", out="b", architecture="convert", init="c")
    assert (settings.learning_rate, settings.final_learning_rate, settings.batch_size) == (0.1, 0.0001, 256)
    assert (settings.max_updates, settings.dropout, settings.label_smoothing) == (60_000, 0.2, 0.2)
    assert RunSettings(train="a", out="b", architecture="convert", init="c", learning_rate=0.5).learning_rate == 0.5

    others = RunSettings(train="a", out="b", backbone="c")
    assert (others.learning_rate, others.optimizer, others.clip, others.batch_size) == (5e-5, "adamw", 1.0, None)


def test_a_trained_convert_is_a_ranker_like_any_other(make_settings, tmp_path):
    report = train_ranker(make_settings(epochs=40, optimizer="adamw", learning_rate=3e-3, evaluations=0.1))
    assert report.trained["hits@1"] > max(0.5, report.before["hits@1"])

    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert int(ranker.model.scale.batches) > 0
    assert "| scores | cosines times" in (tmp_path / "out" / "README.md").read_text()
    replies = [f"the {thing} is great , 1 ." for thing in THINGS]
    contexts = [["hello !", f"do you like the {thing} 1 ?"] for thing in THINGS]
    scores = ranker.score(contexts, replies)
    scale = float(ranker.model.scale())
    assert scores.abs().max() <= scale * 1.0001

    index = ranker.index(replies, tmp_path / "index")
    for context, row in zip(contexts, scores, strict=True):
        hits = ranker.search(context, index, top_k=3)
        assert [hit.text for hit in hits] == [one.text for one in ranker.rank(context, replies, top_k=3)]
        torch.testing.assert_close(torch.tensor([hit.score for hit in hits]), row.topk(3).values)

    examples = ({"context": c, "response": r, "candidates": replies} for c, r in zip(contexts, replies, strict=True))
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    command = ["calibrate", "--model", str(tmp_path / "out"), "--data", str(tmp_path / "examples.jsonl")]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert 0 < ranker.rank(contexts[0], replies, top_k=1)[0].probability <= 1


def test_a_run_that_goes_on_with_a_model_keeps_its_scale_and_sizes(make_settings, tmp_path):
    train_ranker(make_settings(max_updates=4))
    first = Ranker.from_pretrained(tmp_path / "out", device="cpu").model
    train_ranker(make_settings(init=str(tmp_path / "out"), out=str(tmp_path / "next"), max_updates=2, epochs=None))
    second = Ranker.from_pretrained(tmp_path / "next", device="cpu").model
    assert int(second.scale.batches) == int(first.scale.batches) + 2
    assert second.sizes.dropout == 0.2
    assert second.sizes.attention_limits == first.sizes.attention_limits == (2, 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone": "x"}, "starts from a vocabulary"),
        ({"vocabulary": None}, "starts from a vocabulary"),
        ({"history_size": 3}, "extra_contexts in the place of history_size"),
        ({"attention_limits": "3,five"}, "whole numbers with commas"),
        ({"architecture": "bi", "vocabulary": None, "backbone": "x"}, "is of a convert model; this one is bi"),
        ({"init": "x", "hidden_size": 3}, "leave it out"),
    ],
)
def test_settings_that_contradict_each_other(make_settings, fields, message):
    with pytest.raises(ConfigError, match=message):
        train_ranker(make_settings(**fields))


def test_a_vocabulary_of_another_kind_is_an_error(make_settings, backbone_folder):
    with pytest.raises(ConfigError, match="no vocabulary of ConveRT's subwords; learn one with `polyencoder vocab`"):
        train_ranker(make_settings(vocabulary=str(backbone_folder("bert"))))
