"""Draws tables as SVG pictures beside docs/results.md; equal numbers give equal files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduce.page import RunMeasures
from benchmarks.reproduce.tables import Column, Row, Table
from benchmarks.reproduce.values import Value
from polyencoder.packages import require
from polyencoder.storage.files import write_text

_STYLE = {"svg.hashsalt": "benchmarks.reproduce", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
_SIZE = (5.0, 3.2)  # inches
_BESIDE = [(x, y, "left" if x > 0 else "right") for y in (-2, 4, -8, 10, -14, 16, -20) for x in (6, -6)]
"""Offsets of a point's title: points to the right and up, and the side of the title that is there."""
_MANY = ("latency", "lines")
"""Kinds with one line for each row title."""
_TIMED = "ms, 100,000"  # a column of peers
_PAPER = "the paper"  # one of the scales is called paper
Point = tuple[str, float, Value]
"""A row's title, the x coordinate, and the value."""
Times = Mapping[str, float]
"""By the name of a ranker: bi, poly-16, ..."""


def draw(table: Table, all_measured: Sequence[RunMeasures], times: Mapping[str, Times], folder: Path) -> Path | None:
    """Draw `TABLE.svg`; return its path, or None if neither the paper nor we have two points.

    Kinds of pictures: `line` (x: the row's title, a number), `lines` (a line for each row title; x: the number that the
    group's title begins with), `latency` (x: candidates) and `accuracy` (x: milliseconds to answer, of `times`).
    """
    if table.picture is None:
        return None
    series = _collect_series(table, _PAPER, table.paper_values, times[_PAPER])
    for at_scale in all_measured:
        series |= _collect_series(table, f"here, {at_scale.scale.name}", at_scale.values, times[at_scale.scale.name])
    lines = {name: points for name, points in series.items() if len(points) > 1}
    if not lines:
        return None
    path = folder / f"{table.name}.svg"
    write_text(path, _render_svg(table, lines))
    return path


def collect_answer_times(paper: Table, peers: Table, all_measured: Sequence[RunMeasures]) -> dict[str, Times]:
    """Milliseconds to choose among 100,000 candidates on a CPU, by source and ranker.

    `paper` is the paper's Table 5, `peers` the table with our times, `all_measured` its numbers at each scale.
    """
    times: dict[str, Times] = {_PAPER: {row.name: value.mean for row in paper.rows if (value := row.paper[1])}}
    for at_scale in all_measured:
        cells = {str(row.cell["model"]): (row.name, _TIMED) for row in peers.rows if "model" in row.cell}
        times[at_scale.scale.name] = {
            model: at_scale.values[cell].mean for model, cell in cells.items() if cell in at_scale.values
        }
    return times


def _collect_series(
    table: Table, name: str, values: Mapping[tuple[str, str], Value], times: Times
) -> dict[str, list[Point]]:
    """The series of a source: one; in `accuracy`, of ours, one for each group, since row titles recur."""
    series: dict[str, list[Point]] = {}
    for row in table.rows:
        title = name
        if table.picture and table.picture.kind == "accuracy" and name != _PAPER:
            title += f": {row.group[:1].lower()}{row.group[1:]}"
        for column in table.columns:
            value = values.get((row.name, column.title))
            position = _locate(table, row, column, times)
            if value is not None and position is not None and not value.inferred:
                series.setdefault(title, []).append((row.title, position, value))
    return series


def _locate(table: Table, row: Row, column: Column, times: Times) -> float | None:
    """The x coordinate of a cell; all kinds but `latency` have the first column only."""
    kind = table.picture.kind if table.picture else ""
    if kind == "latency":
        for count in (column.title.removesuffix(", CPU"), column.title.removeprefix("ms, ")):
            if count != column.title:
                return float(count.replace(",", ""))
        return None
    if column != table.columns[0]:
        return None
    if kind == "line":
        return float(row.title)
    if kind == "lines":
        return float(row.group.split()[0].replace(",", ""))
    return times.get(str(row.cell.get("model", "")))


def _render_svg(table: Table, series: Mapping[str, Sequence[Point]]) -> str:
    """Render the picture without date and random ids, so that only numbers change it."""
    assert table.picture is not None
    matplotlib: Any = require("matplotlib", extra="plot")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(series.items()):
            last = number == len(series) - 1 or table.picture.kind not in _MANY  # scales share their lines' colors
            style = "--" if name == _PAPER else "-" if last else "-."
            _add(axes, table.picture.kind, name, points, style=style, color=f"C{number}")
        axes.set_xlabel(table.picture.x)
        axes.set_ylabel(table.picture.y)
        if table.picture.kind == "latency":
            axes.set_xscale("log")
            axes.set_yscale("log")
        if table.picture.kind == "lines":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:.0f}")
        if table.picture.kind == "accuracy":
            axes.set_xscale("log")
            axes.margins(x=0.4)  # for their titles
            figure.legend(loc="outside upper center", fontsize=6)  # inside, it would cover titles
            _add_titles(axes, series)
        else:
            axes.legend(fontsize=6 if table.picture.kind in _MANY else None)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _add(axes: Any, kind: str, name: str, points: Sequence[Point], *, style: str, color: str) -> None:
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(point[0] if kind in _MANY else "", []).append(point)
    for number, (title, line) in enumerate(lines.items()):
        line = sorted(line, key=lambda point: point[1])
        axes.errorbar(
            [position for _, position, _ in line],
            [value.mean for _, _, value in line],
            yerr=[value.deviation or 0 for _, _, value in line],
            marker="os^Dv"[number % 5] if kind in _MANY else "o",
            linestyle="none" if kind == "accuracy" else style,
            markerfacecolor=None if style == "-" else "white",
            color=f"C{number}" if kind in _MANY else color,
            label=f"{title}, {name}" if kind in _MANY else name,
            capsize=2,
        )


def _add_titles(axes: Any, series: Mapping[str, Sequence[Point]]) -> None:
    """Adds each point's title beside it, at the first offset inside the axes where it covers nothing."""
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # lays out the axes
    points = [(title, (position, value.mean)) for line in series.values() for title, position, value in line]
    centers = axes.transData.transform([point for _, point in points])
    boxes = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in centers]
    for title, point in points:
        for x, y, aligned in _BESIDE:
            where = {"xytext": (x, y), "textcoords": "offset points", "ha": aligned, "fontsize": 7}
            note = axes.annotate(textwrap.fill(title, 24), point, **where)
            note.set_in_layout(False)
            box = note.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if inside and not any(box.overlaps(other) for other in boxes):
                break
            note.remove()
        else:
            note = axes.annotate(title, point, **where)
        boxes.append(box)
