"""Pictures of a model card, drawn with matplotlib (the extra `plot`); here the reliability diagram of a calibration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from polyencoder.packages import require
from polyencoder.storage.files import atomic_write

if TYPE_CHECKING:
    from polyencoder.calibration.fitting import Reliability

CURVE, RELIABILITY = "curve.svg", "reliability.svg"
"""The pictures of a model card, beside it."""


def create_figure(width: float, height: float) -> Any:
    """A figure of this size in inches, without window or global state. ConfigError without the extra `plot`."""
    return require("matplotlib.figure", extra="plot").Figure(figsize=(width, height), dpi=120, layout="constrained")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure in the format of the path's ending; equal figures give equal files."""
    kind = os.fspath(path).rpartition(".")[2]
    with (
        require("matplotlib", extra="plot").rc_context({"svg.hashsalt": "polyencoder"}),
        atomic_write(path) as temporary,
    ):
        figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)


def draw_reliability(measured: Reliability, path: str | os.PathLike[str]) -> None:
    """Draws the share of right answers against their probability; a perfect calibration is on the diagonal.

    The area of a point is the share of the answers in its bin.

    Raises:
        ConfigError: the extra `plot` is not installed.
    """
    figure = create_figure(3.6, 3.4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle="dashed", color="grey")
    probabilities, right = [bin_.probability for bin_ in measured.bins], [bin_.right for bin_ in measured.bins]
    axes.plot(probabilities, right, color="C0")
    axes.scatter(probabilities, right, s=[400 * bin_.share for bin_ in measured.bins], color="C0")  # square points
    axes.set(xlabel="probability", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.3)
    save_figure(figure, path)
