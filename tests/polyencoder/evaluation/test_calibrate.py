"""Calibration in one call: for rankings and searches, with risks, and what it refuses."""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import pytest
import torch

from polyencoder import Ranker
from polyencoder.calibration import DEPTH
from polyencoder.calibration.fitting import Observations, fit
from polyencoder.data.example import Example
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation.calibrate import collect_observations, observe_search
from polyencoder.settings.base import get_flat_values
from polyencoder.settings.train import TrainSettings
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("bi")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    words = ["ski", "dogs", "cat", "math", "hello", "you", "teacher", "mountains", "thank", "brother"]
    rng = random.Random(0)
    return sorted({" ".join(rng.choices(words, k=rng.randint(2, 6))) for _ in range(60)})


@pytest.fixture(scope="module")
def examples(make_ranker, texts) -> list[dict[str, object]]:
    """Four of five have the candidate that the ranker prefers as their response."""
    ranker, rng, rows = make_ranker("bi"), random.Random(1), []
    for i in range(100):
        context, candidates = rng.sample(texts, 2), rng.sample(texts, 6)
        first = ranker.rank(context, candidates, top_k=1)[0].text
        rows.append({"context": context, "response": first if i % 5 else candidates[0], "candidates": candidates})
    return rows


def test_a_calibration_of_rankings_with_a_risk(ranker, examples, tmp_path):
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in examples))
    calibration = ranker.calibrate(examples, risk=(0.8, 0.9), data="rows").calibration
    assert calibration == ranker.calibration
    fitted_on = calibration.fitted_on
    assert (fitted_on.data, fitted_on.examples, fitted_on.candidates) == ("rows", 100, 6)
    assert calibration.promises[-1].risk == 0.9
    assert calibration.promises == ranker.calibrate(path, risk=(0.8, 0.9)).calibration.promises
    assert ranker.calibrate(path, risk=0.9, seed=1).calibration.promises != calibration.promises
    row = examples[0]
    best = ranker.rank(row["context"], row["candidates"])[0]
    assert best.risk == (0.9 if best.probability >= ranker.calibration.promise(0.9, index=None).threshold else None)


def test_one_of_searches_is_kept_beside_it(ranker, examples, texts, tmp_path):
    ranker.calibrate(examples, risk=0.9)
    index = ranker.index(texts, tmp_path / "replies")
    rows = [{**row, "response": ranker.search(row["context"], index, top_k=1)[0].text} for row in examples]
    fitted = ranker.calibrate(rows, index, risk=0.7, unanswerable=0.1)
    assert ranker.calibration.index == fitted.calibration
    assert fitted.calibration.fitted_on.index == "replies"
    assert ranker.search(rows[0]["context"], index, max_risk=0.7)[0].risk == 0.7
    assert ranker.rank("hello", texts, max_risk=0.9, top_k=1) is not None
    with pytest.raises(ConfigError, match="promises 0.9 for ranking: give one of these"):
        ranker.rank("hello", texts, max_risk=0.5)
    with pytest.raises(ConfigError, match="promises none for searching others"):
        ranker.search("hello", ranker.index(texts, tmp_path / "others"), max_risk=0.7)


def test_what_cannot_be_calibrated(ranker, examples, texts):
    index, before = ranker.index(texts), ranker.calibration
    cases = {
        "each example has a single candidate": [{**row, "candidates": [row["response"]]} for row in examples],
        "comes first in 0 of 100": [
            {**row, "response": ranker.rank(row["context"], row["candidates"])[-1].text} for row in examples
        ],
        "needs at least 118 examples": examples,
        "9 examples are too few": examples[:9],
    }
    for message, rows in cases.items():
        with pytest.raises(InputError, match=message):
            ranker.calibrate(rows, risk=0.05 if message.startswith("needs") else ())
    with pytest.raises(InputError, match="are the responses among the candidates, word by word"):
        ranker.calibrate([{**row, "response": "not there"} for row in examples], index)
    for risk in (0, 1):
        with pytest.raises(InputError, match=f"risk is {risk}; it must be between 0 and 1"):
            ranker.calibrate(examples, risk=risk)
    assert ranker.calibration is before


@mostly_long("columns", [{}, {"context": "q", "response": "a"}], quick=1)
def test_examples_of_the_training(ranker, examples, tmp_path, columns):
    """The run's record names the files, whose columns may have other names."""
    path, model = tmp_path / "train.jsonl", tmp_path / "model"
    names = {"context": "context", "response": "response"} | columns
    path.write_text("".join(json.dumps({key: row[name] for name, key in names.items()}) + "\n" for row in examples))
    ranker.save_pretrained(model)
    (model / "training").mkdir()
    options = get_flat_values(TrainSettings.of(backbone="x", train=str(path), valid="v", out=str(model), **columns))
    (model / "training" / "run.json").write_text(json.dumps({"options": options}))
    ranker = Ranker.from_pretrained(model, device="cpu")
    with pytest.raises(InputError, match=r"trained on 100 of the 100 examples, of .*train\.jsonl"):
        ranker.calibrate(examples)
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:10]))
    assert ranker.calibrate(examples).calibration is not None
    path.unlink()
    assert ranker.calibrate(examples).calibration is not None


TEXTS = [f"text {number}" for number in range(20)]
SEVERAL = Example.graded(["hi"], TEXTS, [0, 2, 0, 1] + [0] * 15 + [1])
SINGLE = Example(["hi"], TEXTS[2], TEXTS)
SCORES = -torch.arange(20.0)  # text 0 is the best


def test_every_right_candidate_is_right():
    seen = collect_observations([SEVERAL, SINGLE], [(1, SCORES), (0, SCORES)])
    assert [row.nonzero().flatten().tolist() for row in seen.right] == [[1, 3, 19], [2]]
    assert (seen.scores.isfinite().sum(1).tolist(), seen.among.tolist()) == ([20, 20], [20, 20])
    wrong = seen.remove_right()
    assert not wrong.right.any()
    assert wrong.among.tolist() == [17, 19]
    assert wrong.scores[0, :4].tolist() == [0, -2, -4, -5]
    assert wrong.scores.isfinite().sum(1).tolist() == [17, 19]


def test_of_a_search_too():
    hits = [SimpleNamespace(text=f" {text} ", score=float(score)) for text, score in zip(TEXTS, SCORES, strict=True)]

    class Search:
        reranker, among, top_k = None, 20, 11

        def __call__(self, contexts):
            return [hits for _ in contexts]

    actual = observe_search(Search(), [SEVERAL, SINGLE])
    expected = collect_observations([SEVERAL, SINGLE], [(0, SCORES), (1, SCORES)])
    assert torch.equal(actual.scores, expected.scores)
    assert torch.equal(actual.right, expected.right)
    assert (actual.depth, expected.depth) == (DEPTH, None)


def test_the_fit_adds_the_probabilities_of_the_right_ones():
    """The fit is a maximum of the likelihood, and its first candidate is right whichever of them it is."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1000, 6, generator=generator, dtype=torch.float64)
    scores[:, :2] += 1
    best, order = scores.sort(1, descending=True)
    seen = Observations(best, order < 2, torch.full((1000,), 6))
    fitted = fit(seen, fingerprint="x")
    assert fitted.accuracy == float((order[:, 0] < 2).double().mean())

    def likelihood(slope: float, none: float) -> float:
        total = 0.0
        for observations in (seen, seen.remove_right()):
            rows = (observations.scores.tolist(), observations.right.tolist(), observations.among.tolist())
            for row, right, among in zip(*rows, strict=True):
                weights = [math.exp(slope * score) for score in row]
                rest = among * math.exp(none)
                picked = sum(w for w, is_right in zip(weights, right, strict=True) if is_right) or rest
                total += math.log(picked / (sum(weights) + rest))
        return total

    slope, none = 1 / fitted.calibration.temperature, fitted.calibration.none
    for d in (-0.1, 0.1):
        assert likelihood(slope * (1 + d), none) < likelihood(slope, none)
        assert likelihood(slope, none + d) < likelihood(slope, none)
    alone = fit(Observations(best, order < 1, seen.among), fingerprint="x")  # as if the other one were wrong
    assert fitted.accuracy > alone.accuracy + 0.2
    assert fitted.after.error < 0.1
