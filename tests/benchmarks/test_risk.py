"""The benchmark of promised risks: what it counts, and each of its cases in miniature."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch

from benchmarks import risk
from polyencoder.calibration.fitting import Observations
from polyencoder.calibration.risk import Answers


def observed(scores, right) -> Observations:
    scores = torch.tensor(scores, dtype=torch.float64)
    return Observations(scores, torch.tensor(right), torch.full((len(scores),), scores.shape[1]))


def made_up(n: int) -> Observations:
    """Two candidates each: the best is right where its score is high."""
    rng = np.random.default_rng(0)
    best = rng.uniform(0, 8, size=n)
    first = rng.random(n) < 1 / (1 + np.exp(6 - 3 * best))
    return observed(np.stack([best, np.zeros(n)], 1).tolist(), np.stack([first, ~first], 1).tolist())


def test_what_a_threshold_does():
    answers = Answers(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    assert risk.Outcome.from_answers(answers, 0.7) == (1 / 3, 0.75)
    assert risk.Outcome.from_answers(answers, 0.95) == (0, 0)


def test_the_lowest_score_with_enough_right_answers():
    right = [[True], [True], [False], [True], [False]]
    calibrating = observed([[5.0], [4.0], [3.0], [2.0], [1.0]], right)
    measured = risk.measure_by_score(
        calibrating, observed([[2.5], [1.5], [9.0]], [[False], [True], [True]]), precision=0.75
    )
    assert measured == (0.5, 2 / 3)  # from 2.0 on three of four are right
    assert risk.measure_by_score(observed([[1.0]], [[False]]), calibrating, precision=0.75) is None


def test_questions_of_another_kind_take_the_place_of_some():
    known, outside = made_up(400), observed([[-1.0, -2.0]], [[False, False]])
    mixed = risk.Questions(known, outside).mix(np.random.default_rng(0), unanswerable=0.25)
    others = mixed.scores[:, 0] == -1
    assert 0.15 < others.double().mean() < 0.35
    assert not mixed.right[others].any()
    assert mixed.right[~others].equal(known.right[~others])


def test_promises_are_counted():
    *promises, score = risk.measure("made up", risk.Questions(made_up(600)), examples=300, resamples=8)
    assert [row["risk"] for row in promises] == [level for level in risk.DRAWN if level >= 0.02]  # 300 prove no 1 %
    answered = [row["answered"] for row in promises]
    assert answered == sorted(answered)
    assert (promises[-1]["promised"], promises[-1]["broken"]) == (1, 0)
    assert promises[-1]["wrong"] <= promises[-1]["risk"]
    assert (score["threshold"], score["risk"], score["promised"]) == ("score", 0.1, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("minilm_folder")
def test_every_case(tmp_path, capsys):
    for folder in ("banking77", "dailydialog", "tools"):
        (tmp_path / folder).mkdir()
    questions = [f"{n} {word} ?,{word}" for n in range(20) for word in ("dogs", "cats", "skis")]
    for split in ("train", "test"):
        (tmp_path / "banking77" / f"{split}.csv").write_text("\n".join(["text,category", *questions]))
    dialogues = [{"split": "test", "turns": [f"{n} dogs", f"{n} cats", f"{n} skis"]} for n in range(20)]
    with gzip.open(tmp_path / "dailydialog" / "dialogues.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, dialogues)))
    turns = [{"messages": [{"role": "user", "content": f"{n} dogs"}], "tools": ["dogs"]} for n in range(30)]
    (tmp_path / "tools" / "test.jsonl").write_text("\n".join(map(json.dumps, turns)))
    tools = [{"name": name, "description": f"my {name} ."} for name in ("dogs", "cats")]
    (tmp_path / "tools" / "test.json").write_text(json.dumps(tools))
    data = ["--datapath", str(tmp_path), "--tool-data", str(tmp_path / "tools")]
    risk.main([*data, "--quick", "--json", "--picture", str(tmp_path / "risk.svg")])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["case"] for row in rows if row["threshold"] == "score"} == {*risk.READERS}
    assert all(0 <= row["broken"] <= row["promised"] <= 1 for row in rows)
    assert "<!-- shop -->" in (tmp_path / "risk.svg").read_text()  # the others have too few examples


def test_tools_without_their_files(tmp_path, capsys):
    with pytest.raises(SystemExit):
        risk.main(["--datapath", str(tmp_path), "--cases", "tools"])
    assert "--tool-data" in capsys.readouterr().err
