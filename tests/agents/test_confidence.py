"""`--min-probability` and `--max-risk` through ParlAI's scripts: nothing rather than nonsense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polyencoder import ConfigError, Ranker
from polyencoder.calibration import read_calibration
from polyencoder.data.example import Example
from tests.polyencoder.calibration.test_probability import promise

pytestmark = pytest.mark.slow

NONE = "I have no good answer to that."


@pytest.fixture
def calibrated(copy_of, labels):
    """(model) -> a copy of the trained model, calibrated with questions that it was not trained with."""

    def make(model: str) -> Path:
        path = copy_of(model)
        ranker = Ranker.from_pretrained(path, device="cpu")
        questions = ["is the {} here ?", "where is my {} ?", "say , where is the {} now ?"]
        examples = [
            Example([question.format(label.split()[1])], label, labels) for question in questions for label in labels
        ]
        ranker.calibrate(examples).calibration.save(path)
        assert read_calibration(path, ranker) is not None
        return path

    return make


@pytest.mark.parametrize("indexed", [False, True])
def test_evaluation(calibrated, evaluate, candidates_file, labels, tmp_path, indexed):
    path = calibrated("polyencoder")
    options = {"eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}
    if indexed:
        Ranker.from_pretrained(path, device="cpu").index(labels, tmp_path / "index")
        options = {"index": str(tmp_path / "index")}
    plain = evaluate(path, **options)
    careful = evaluate(path, min_probability="0.5", **options)
    same = ["R8@1", "exs", *(["mrr@8"] if indexed else ["mrr", "loss", "rank"])]
    assert {name: careful[name] for name in same} == {name: plain[name] for name in same}
    assert 0 < careful["answered"] <= 1
    assert careful["right_of_answered"] >= plain["R8@1"]
    assert careful["accuracy"] == pytest.approx(careful["answered"] * careful["right_of_answered"])
    silent = evaluate(path, min_probability="1.0", **options)
    assert (silent["answered"], silent["accuracy"]) == (0, 0)
    assert silent["R8@1"] == plain["R8@1"]


def test_interactive(calibrated, candidates_file, chat):
    path = calibrated("biencoder")
    options = {"fixed_candidates_path": str(candidates_file), "repeat_blocking_heuristic": False}
    lines = "where is the owl ?\n[DONE]\nwhere is the cat ?\n"
    assert chat(path, lines, min_probability="0.2", **options) == ["my owl is here .", "my cat is here ."]
    answers = chat(path, lines, min_probability="1", no_answer="pardon ?", **options)
    assert answers == ["pardon ?"] * 2
    assert chat(path, lines, min_probability="1", **options) == [NONE] * 2


def test_a_promised_risk(calibrated, candidates_file, evaluate, chat):
    """A conversation has the first promise by default; an evaluation does not."""
    path = calibrated("biencoder")
    ranker = Ranker.from_pretrained(path, device="cpu")
    promises = (promise(risk=0.05, threshold=1.0), promise(risk=0.5, threshold=0.2))
    replace(ranker.calibration, promises=promises).save(path)
    options = {"fixed_candidates_path": str(candidates_file), "repeat_blocking_heuristic": False}
    lines = "where is the owl ?\n"
    assert chat(path, lines, **options) == [NONE]
    assert chat(path, lines, max_risk="0.5", **options) == ["my owl is here ."]
    fixed = {"eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}
    assert "answered" not in evaluate(path, **fixed)
    assert evaluate(path, max_risk="0.05", **fixed)["answered"] == 0
    with pytest.raises(ConfigError, match="promises 0.05, 0.5 for ranking: give one of these"):
        evaluate(path, max_risk="0.1", **fixed)


def test_what_cannot_be_asked_for(trained, copy_of, train, evaluate):
    path, _ = trained("biencoder")
    with pytest.raises(ConfigError, match="needs a calibrated model"):
        evaluate(path, min_probability="0.5")
    with pytest.raises(ConfigError, match="--min-probability is for a trained model: leave it out in training"):
        train("biencoder", copy_of("biencoder"), min_probability="0.5")
