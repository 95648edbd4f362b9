"""Draws the figures of a report as SVG: the learning curve, and the reliability diagram of a calibration."""

from __future__ import annotations

import io
from typing import Any

from polyencoder.calibration.fitting import Reliability
from polyencoder.packages import require
from polyencoder.training.callbacks.curve import LearningCurve, Points, curve_figure

_SIZE = (3.6, 3.4)  # inches


def curve_svg(points: Points) -> str:
    """Draws loss, R@1 and learning rate over the updates.

    Raises:
        ConfigError: the extra `plot` is not installed.
    """
    return _svg(curve_figure(points, LearningCurve.panels))


def reliability_svg(measured: Reliability) -> str:
    """Draws the share of right answers against their probability; those of a perfect calibration are on the diagonal.

    The area of a point is the share of the answers in its bin.

    Raises:
        ConfigError: the extra `plot` is not installed.
    """
    figure = require("matplotlib.figure", extra="plot").Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle="--", color="grey")
    bins = measured.bins
    axes.plot([one.probability for one in bins], [one.right for one in bins], color="C0")
    sizes = [400 * one.share for one in bins]  # square points
    axes.scatter([one.probability for one in bins], [one.right for one in bins], s=sizes, color="C0")
    axes.set(xlabel="probability", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.3)
    return _svg(figure)


def _svg(figure: Any) -> str:
    """The same text each time, without XML's first lines."""
    with require("matplotlib", extra="plot").rc_context({"svg.hashsalt": "report"}):
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    return svg[svg.index("<svg") :]
