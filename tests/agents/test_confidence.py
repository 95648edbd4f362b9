"""`--min-probability` through ParlAI's scripts: nothing rather than nonsense."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from parlai.scripts.interactive import Interactive

from polyencoder import ConfigError, Ranker
from polyencoder.calibration import read_calibration
from polyencoder.calibration.fitting import fit
from polyencoder.data.example import Example
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.evaluation.observe import observe

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
        fit(
            observe(ranker, examples), fingerprint=model_fingerprint(ranker.model, ranker.text), precision=0.8
        ).calibration.save(path)
        assert read_calibration(path, ranker) is not None
        return path

    return make


def chat(path: Path, lines: str, monkeypatch, capsys, **options) -> list[str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    capsys.readouterr()
    Interactive.main(model_file=str(path), loglevel="error", **options)
    return re.findall(r"\[\w+encoder\]: (.*)", re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out))


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


def test_interactive(calibrated, candidates_file, monkeypatch, capsys):
    path = calibrated("biencoder")
    options = {"fixed_candidates_path": str(candidates_file), "repeat_blocking_heuristic": False}
    lines = "where is the owl ?\n[DONE]\nwhere is the cat ?\n"
    assert chat(path, lines, monkeypatch, capsys, min_probability="0.2", **options) == [
        "my owl is here .",
        "my cat is here .",
    ]
    said = chat(path, lines, monkeypatch, capsys, min_probability="1", no_answer="pardon ?", **options)
    assert said == ["pardon ?"] * 2
    assert chat(path, lines, monkeypatch, capsys, min_probability="1", **options) == [NONE] * 2


def test_what_cannot_be_asked_for(trained, copy_of, train, evaluate):
    path, _ = trained("biencoder")
    with pytest.raises(ConfigError, match="needs a calibrated model"):
        evaluate(path, min_probability="0.5")
    with pytest.raises(ConfigError, match="--min-probability is for a trained model: leave it out in training"):
        train("biencoder", copy_of("biencoder"), min_probability="0.5")
