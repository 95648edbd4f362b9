"""Plots the learning curve of a run: loss, R@1 and learning rate over its updates."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from polyencoder.errors import ConfigError
from polyencoder.evaluation.names import parse_num_candidates, select_main_measures
from polyencoder.pictures import create_figure, save_figure
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.log import AMONG, measure_batch
from polyencoder.training.objective import Outcome

RATE = "learning rate"
WIDTH, HEIGHT = 7, 2.7  # inches, for each panel
MAX_POINTS = 500  # of training: longer runs are thinned

Points = dict[str, list[dict[str, float]]]

_log = logging.getLogger(__name__)


class LearningCurve(Callback):
    """Collects points, `{"updates": n, "loss": ..., "R@1": ...}`, of evaluations and of batches between two points."""

    name = "curve"
    stored = ("points", "_every", "_batches")

    def __init__(
        self, path: str | os.PathLike[str], *, title: str, panels: Sequence[str] = ("loss", "R@1", RATE)
    ) -> None:
        """`panels`: the measures to plot, one panel each."""
        self.path, self._title, self.panels = os.fspath(path), title, panels
        self.points: Points = {"training": [], "validation": []}
        self._every = 1  # updates between two points of training
        self._batches: list[dict[str, float]] = []  # since the last point

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        updates = run.updates.count
        measures = {} if outcome is None or not len(outcome) else measure_batch(outcome)
        if measures:
            means = {name: value / count for name, (value, count) in measures.items() if count}
            self._batches.append({**means, RATE: run.updates.learning_rate})
        points = self.points["training"]
        if self._batches and updates - (points[-1]["updates"] if points else 0) >= self._every:
            points.append({"updates": updates, **_compute_mean(self._batches)})
            self._batches.clear()
        if len(points) >= MAX_POINTS:
            pairs = zip(points[::2], points[1::2], strict=True)
            points[:] = [_compute_mean(pair) | {"updates": pair[1]["updates"]} for pair in pairs]
            self._every *= 2

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        values = {**report, "R@1": report.get("hits@1"), AMONG: parse_num_candidates(select_main_measures(report))}
        metrics = {name: float(value) for name in (*self.panels, AMONG) if (value := values.get(name)) is not None}
        self.points["validation"].append({"updates": run.updates.count, **metrics})

    def on_end(self, run: Run) -> None:
        if not any(self.points.values()):
            return
        try:
            self.draw()
        except ConfigError as error:
            _log.info("no curve is drawn: %s", error)
        except OSError as error:
            _log.error("%s could not be written: %s", self.path, error.strerror)

    def draw(self) -> None:
        """Writes the picture, a panel for each measure. ConfigError if the extra `plot` is not installed."""
        panels, points = self.panels, self.points
        figure = create_figure(WIDTH, HEIGHT * len(panels))
        figure.suptitle(self._title, parse_math=False)  # a folder's name may have dollars
        for panel, axes in zip(panels, figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], strict=True):
            for kind, style in (("training", {}), ("validation", {"marker": "o"})):
                drawn = [(point["updates"], point[panel]) for point in points[kind] if panel in point]
                if drawn:
                    axes.plot(*zip(*drawn, strict=True), label=format_curve_label(kind, points[kind]), **style)
            axes.set_ylabel(panel.replace("_", " "))
            axes.grid(alpha=0.3)
            if axes.lines and panel != RATE:
                axes.legend()
        axes.set_xlabel("updates")
        save_figure(figure, self.path)


def format_curve_label(kind: str, points: Sequence[Mapping[str, float]]) -> str:
    """`training, among 64 candidates`: their mean number, if known."""
    counts = [point[AMONG] for point in points if AMONG in point]
    return f"{kind}, among {round(sum(counts) / len(counts)):,} candidates" if counts else kind


def _compute_mean(points: Any) -> dict[str, float]:
    """The mean of each number over the points that have it."""
    names = dict.fromkeys(name for point in points for name in point)
    by_name = {name: [point[name] for point in points if name in point] for name in names}
    return {name: sum(values) / len(values) for name, values in by_name.items()}
