"""`X.png`, beside the model: loss, R@1 and learning rate of a run, in training and in validation."""

from __future__ import annotations

from typing import Any

from polyencoder.extras import require
from polyencoder.files import replacing

CHOICES = ("loss", "R@1")  # numbers that say how well the right candidate was chosen, and depend on how many there were
PANELS = (*CHOICES, "learning rate")
SIZE, DPI = (7, 8), 120  # inches


class Curve:
    """Points of a run, as they are known: `{"updates": n, "loss": ..., "R@1": ..., "among": candidates, ...}`."""

    def __init__(self, points: dict[str, list[dict[str, float]]] | None = None) -> None:
        self.points = points or {"training": [], "validation": []}

    def add(self, kind: str, updates: int, values: dict[str, float | None]) -> None:
        """A point of "training" or "validation", after so many updates; unknown values are left out."""
        known = {name: float(value) for name, value in values.items() if value is not None}
        if known:
            self.points[kind].append({"updates": updates, **known})

    def __bool__(self) -> bool:
        return any(self.points.values())

    def draw(self, path: str, *, title: str) -> None:
        """Write the PNG.

        Loss and R@1 of training and validation are those of a choice among different numbers of candidates, and say so.

        Raises:
            ConfigError: the extra `plot` is not installed.
        """
        figure_module = require("matplotlib.figure", extra="plot")
        figure = figure_module.Figure(figsize=SIZE, dpi=DPI, layout="constrained")  # no window, no global state
        figure.suptitle(title)
        for panel, axes in zip(PANELS, figure.subplots(len(PANELS), sharex=True), strict=True):
            for kind, style in (("training", {}), ("validation", {"marker": "o"})):
                self._line(axes, kind, panel, **style)
            axes.set_ylabel(panel)
            axes.grid(alpha=0.3)
            if axes.lines and panel in CHOICES:
                axes.legend()
        axes.set_xlabel("updates")
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png")

    def label(self, kind: str) -> str:
        """`training, among 64 candidates`: their mean number, where the points tell it."""
        known = [point["among"] for point in self.points[kind] if "among" in point]
        return f"{kind}, among {round(sum(known) / len(known)):,} candidates" if known else kind

    def _line(self, axes: Any, kind: str, name: str, **style: Any) -> None:
        points = [(point["updates"], point[name]) for point in self.points[kind] if name in point]
        if points:
            axes.plot(*zip(*points, strict=True), label=self.label(kind), **style)
