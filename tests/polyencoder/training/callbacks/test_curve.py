"""The learning curve: its points, few however long the run, and the picture of them."""

from __future__ import annotations

import json
import sys

import pytest
from PIL import Image

from polyencoder.errors import ConfigError
from polyencoder.training.callbacks import curve as curve_module
from polyencoder.training.callbacks.curve import LearningCurve, format_curve_label

pytestmark = pytest.mark.usefixtures("drawn_curves")


@pytest.fixture
def curve(tmp_path) -> LearningCurve:
    return LearningCurve(tmp_path / "curve.png", title="a run of $ and $_")


def test_points_of_training_and_of_evaluations(curve, run):
    run.step(curve, loss=2.0, hit=False)
    run.step(curve, loss=1.0, candidates=5)
    curve.on_evaluation(run, {"loss": 0.5, "hits@1": 0.25, "R20@1": 0.25, "mrr": 0.5})
    first, second = curve.points["training"]
    assert first == {"updates": 1, "loss": 2.0, "R@1": 0.0, "learning rate": 5e-5, "among": 3}
    assert second == {"updates": 2, "loss": 1.0, "R@1": 1.0, "learning rate": 5e-5, "among": 5}
    assert curve.points["validation"] == [{"updates": 2, "loss": 0.5, "R@1": 0.25, "among": 20}]
    assert [format_curve_label(*series) for series in curve.points.items()] == [
        "training, among 4 candidates",
        "validation, among 20 candidates",
    ]


def test_a_long_run_has_few_points_and_their_mean_is_the_runs(curve, run, monkeypatch):
    monkeypatch.setattr(curve_module, "MAX_POINTS", 8)
    losses = [float(n % 7) for n in range(64)]
    for loss in losses:
        run.step(curve, loss=loss)
    points = curve.points["training"]
    assert 4 <= len(points) < 8
    assert points[-1]["updates"] == 64
    assert sum(point["loss"] for point in points) / len(points) == pytest.approx(sum(losses) / len(losses))


def test_a_run_that_goes_on_has_the_same_points(curve, run, tmp_path, monkeypatch):
    monkeypatch.setattr(curve_module, "MAX_POINTS", 8)
    other = LearningCurve(tmp_path / "other.png", title="the same")
    for n in range(20):
        run.step(curve, loss=float(n))
    other.load_state_dict(json.loads(json.dumps(curve.state_dict())))
    updates = run.updates.count
    for learning_curve in (curve, other):
        run.updates.count = updates
        for n in range(20):
            run.step(learning_curve, loss=float(n))
    assert other.points == curve.points


@pytest.mark.slow
def test_a_curve_is_a_picture(curve, run, tmp_path):
    curve.on_end(run)
    assert not list(tmp_path.iterdir()), "there was nothing to draw"
    for n in range(20):
        run.step(curve, loss=1 / (n + 1))
    curve.on_evaluation(run, {"loss": 0.5, "hits@1": 0.1})
    curve.on_end(run)
    with Image.open(tmp_path / "curve.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 500
        assert len(image.getcolors(1_000_000)) > 10


def test_without_its_extra_a_curve_says_so(curve, run, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run.step(curve)
    with pytest.raises(ConfigError, match=r"pip install 'parlai-polyencoder\[plot\]'"):
        curve.draw()
    assert not list(tmp_path.iterdir())
