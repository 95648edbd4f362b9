"""`polyencoder map`: what it prints, the ranker that it writes, and what it refuses."""

from __future__ import annotations

import json
import shutil

import pytest

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.ranker.ranker import Ranker
from polyencoder.training.candidate_map import fit_map
from tests.commands import run_command
from tests.polyencoder.cli.commands import with_files_once
from tests.polyencoder.intents.conftest import made

QUICK = ["--learning-rates", "0.1", "--regularizers", "0", "--max-epochs", "5"]
VALID = ["--valid", "valid.jsonl", "--num-negatives", "4"]


@pytest.fixture
def run(make_ranker, tmp_path, monkeypatch):
    """(*arguments) -> what `polyencoder map` prints."""
    make_ranker("bi", reduction="mean").save_pretrained(tmp_path / "model")
    texts = [one.text for one in made()]
    lines = [
        json.dumps({"context": [text], "response": f"{other} !"}) for text, other in zip(texts, texts, strict=True)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "valid.jsonl").write_text("\n".join(lines[::4]))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        given = ["map", "--train", "train.jsonl", "-m", "model", "--no-progress", *QUICK, *arguments]
        return run_command(*with_files_once(given)).output

    return call


def test_a_map_that_is_no_better_has_a_warning(run, monkeypatch):
    """As a ranker that training does not improve."""
    monkeypatch.setattr("polyencoder.training.candidate_map.mapped", lambda model, matrix: model)
    assert "\nwarning: the map is no better than no map: R@1 +0.000; give more pairs" in run(*VALID)


def test_from_pairs_to_a_ranker(run, tmp_path):
    said = run(*VALID, "--out", "mapped")
    assert "held out: R@1" in said
    assert [line.split()[0] for line in said.splitlines()[1:4]] == ["TF-IDF", "unmapped", "mapped"]
    assert Ranker.from_pretrained(tmp_path / "mapped").model.config.candidate_map
    evaluated = ["evaluate", "-m", "mapped", "-d", "valid.jsonl", "--negatives", "train.jsonl", "--num-negatives", "4"]
    result = run_command(*evaluated, "--json")
    report = json.loads(run(*VALID, "--json"))
    assert json.loads(result.output)["R5@1"] == pytest.approx(report["valid"]["mapped"]["R5@1"])
    with pytest.raises(ConfigError, match="holds a model already"):
        run("--out", "mapped")
    (tmp_path / "mapped" / "README.md").write_text("of another model")
    run("--out", "mapped", "--overwrite")
    assert "# mapped" in (tmp_path / "mapped" / "README.md").read_text()


def test_candidates_are_sampled_from_all_right_responses_as_in_evaluate(run, tmp_path):
    texts = [one.text for one in made()]
    records = ({"context": [text], "responses": [f"{text} !", f"{text} , indeed ."]} for text in texts)
    (tmp_path / "several.jsonl").write_text("\n".join(map(json.dumps, records)))
    report = json.loads(run("--train", "several.jsonl", *VALID, "--json"))["valid"]
    evaluated = ["evaluate", "-m", "model", "-d", "valid.jsonl", "--negatives", "several.jsonl", "--num-negatives", "4"]
    found = json.loads(run_command(*evaluated, "--json", "--baseline", "tfidf").output)
    assert report["unmapped"]["loss"] == pytest.approx(found["loss"])
    assert report["TF-IDF"] == found["tfidf"]


def test_a_model_that_appears_meanwhile_is_not_replaced(run, tmp_path, monkeypatch):
    """Another run's, which ends while this one trains."""

    def slow_training(*parts, **options):
        shutil.copytree(tmp_path / "model", tmp_path / "mapped")
        return fit_map(*parts, **options)

    monkeypatch.setattr("polyencoder.training.candidate_map.fit_map", slow_training)
    with pytest.raises(CheckpointError, match="mapped: cannot be written .another process has written it meanwhile"):
        run("--out", "mapped")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "mapped").iterdir()} == kept
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--backbone", "b"], ConfigError, "give either --model, a ranker, or --backbone"),
        (["--num-negatives", "4"], ConfigError, "num_negatives is read only with valid"),
        (["--learning-rates", "much"], ConfigError, "learning_rates is 'much'"),
        (["--train", "none.jsonl"], InputError, "no such file"),
        (["--train", "one.jsonl"], InputError, "are too few"),
        (["--valid", "bad.jsonl"], InputError, "bad.jsonl, line 1: has no 'response'"),
    ],
)
def test_what_it_refuses(run, tmp_path, arguments, error, message):
    (tmp_path / "one.jsonl").write_text('{"context": "a", "response": "b"}')
    (tmp_path / "bad.jsonl").write_text('{"context": "a"}')
    with pytest.raises(error, match=message):
        run(*arguments, "--out", "mapped")
    assert not (tmp_path / "mapped").exists()
