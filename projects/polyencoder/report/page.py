"""A training run as an HTML page; it says what is missing, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, TypeVar

from polyencoder.calibration import Calibration
from polyencoder.errors import ConfigError
from polyencoder.evaluation.names import main_measures
from polyencoder.html import page, table
from polyencoder.report.pictures import curve_svg, reliability_svg
from polyencoder.report.record import RunRecord
from polyencoder.report.validation import Validation
from polyencoder.training.folder import CHECKPOINT

T = TypeVar("T")


def report_page(run: RunRecord, *, calibration: Calibration | None = None, validation: Validation | None = None) -> str:
    """One HTML file that fetches nothing: measures, curve, settings, calibration, worst errors, speed and memory.

    Args:
        run: the record.
        calibration: of its model, if that is calibrated.
        validation: what its model makes of validation data, if that was given.
    """
    name = run.folder.resolve().name
    parts = [
        f"<h1>{escape(name)}</h1>",
        _paragraph(f"A {run.options['architecture']} ranker, trained on {run.options['train']}."),
        "<h2>Measures</h2>",
        *_measures(run),
        "<h2>Curve</h2>",
        _drawn("the curve", curve_svg, run.points) if any(run.points.values()) else _without_checkpoint("the curve"),
        "<h2>Settings</h2>",
        *_settings(run),
        "<h2>Calibration</h2>",
        *_calibration(calibration, validation),
        "<h2>Worst errors</h2>",
        *_errors(validation),
        "<h2>Speed and memory</h2>",
        *_speed(run),
    ]
    return page(name, parts)


def _measures(run: RunRecord) -> Iterator[str]:
    if not run.measures:
        yield _without_checkpoint("measures and baselines")
        return
    yield _measures_table(run.measures)
    updates = f"{run.progress['updates']:,} updates"
    yield _paragraph(
        f"Measured on the run's validation data. The kept model is the one after {run.kept:,} of {updates}."
        if run.kept
        else f"Measured on the run's validation data. The kept model is the one before training, of {updates}."
    )
    if run.stopped:
        yield _paragraph(f"The run ended early: {run.stopped}.")


def _measures_table(reports: Mapping[str, Mapping[str, float]]) -> str:
    names = list(dict.fromkeys(name for report in reports.values() for name in report))
    rows = (
        f'<td class="text">{escape(who)}</td>' + "".join(_cell(report.get(name)) for name in names)
        for who, report in reports.items()
    )
    return table(["", *names], rows)


def _drawn(what: str, draw: Callable[[T], str], data: T) -> str:
    try:
        return draw(data)
    except ConfigError as error:
        return _paragraph(f"Missing: {what} is not drawn: {error}.")


def _settings(run: RunRecord) -> Iterator[str]:
    changed = list(run.changed)
    rows = (
        f'<td class="text">--{escape(name.replace("_", "-"))}</td><td class="text">{escape(_shown(value))}</td>'
        f'<td class="text">{escape(_shown(default))}</td>'
        for name, value, default in changed
    )
    yield table(["setting", "value", "default"], rows)
    yield _paragraph(f"The other {len(run.options) - len(changed)} settings have their defaults.")


def _calibration(found: Calibration | None, validation: Validation | None) -> Iterator[str]:
    if found is None:
        yield _paragraph("Missing: the model is not calibrated (polyencoder calibrate).")
        return
    for own in filter(None, (found, found.index)):  # for ranking, and for searches of an index
        facts: dict[str, Any] = {"temperature": own.temperature, "none": own.none}
        if own.threshold is not None:
            facts |= {"threshold": own.threshold, "share of right answers above it": own.precision}
        if (fitted := own.fitted_on) is not None:
            facts |= {"fitted on": fitted.data, "examples": fitted.examples, "candidates": fitted.candidates}
            facts |= {"index": fitted.index, "date": fitted.date}
        yield _facts(facts)
    if validation is None or validation.reliability is None:
        yield _paragraph("Missing: how reliable its probabilities are: give --data FILE.")
        return
    measured = validation.reliability
    yield _paragraph(
        f"Probabilities of the first candidates of {validation.data}, each example once with its right response and "
        f"once without it: calibration error {_number(measured.error)}, Brier score {_number(measured.brier)}."
    )
    yield _drawn("their diagram", reliability_svg, measured)
    yield table(
        ["share", "probability", "right"],
        (f"{_cell(one.share)}{_cell(one.probability)}{_cell(one.right)}" for one in measured.bins),
    )


def _errors(validation: Validation | None) -> Iterator[str]:
    if validation is None:
        yield _paragraph("Missing: give --data FILE, validation data to rank with the model.")
        return
    yield _paragraph(f"The model on {validation.examples:,} examples of {validation.data}:")
    yield _measures_table({"": main_measures(validation.report)})
    if not validation.worst:
        yield _paragraph("It ranks the right response first in all of them.")
    for one in validation.worst:
        yield f"<h3>Rank {one.rank} of {one.among}</h3>"
        yield from map(_paragraph, one.example.turns)
        ranked = [("right", *one.right), *(("above it", *better) for better in one.above)]
        yield table(
            ["", "response", "score"],
            (f'<td>{who}</td><td class="text">{escape(text)}</td>{_cell(score)}' for who, text, score in ranked),
        )
        if (left := one.rank - 1 - len(one.above)) > 0:
            yield _paragraph(f"{left} more above it.")


def _speed(run: RunRecord) -> Iterator[str]:
    last = run.starts[-1] if run.starts else {}
    end, machine = last.get("end", {}), last.get("machine", {})
    if run.progress:
        yield _facts({**run.progress, "examples per second, with evaluations": run.examples_per_second})
    else:
        yield _without_checkpoint("the speed")
    memory = {"peak memory of the process": end.get("peak_bytes"), "peak memory on a GPU": end.get("gpu_peak_bytes")}
    if any(memory.values()):
        yield _facts({name: f"{value / 2**20:,.0f} MiB" for name, value in memory.items() if value})
    else:
        yield _paragraph("Missing: the memory, which is recorded when a run ends.")
    yield _facts({**machine, **last.get("versions", {})})
    yield from (
        _paragraph(f"Started {start.get('time')}, after {start.get('updates')} updates: {start.get('command')}")
        for start in run.starts
    )


def _without_checkpoint(what: str) -> str:
    return _paragraph(f"Missing: {what}: there is no {CHECKPOINT}, or the run had no evaluation yet.")


def _facts(facts: Mapping[str, Any]) -> str:
    known = {name: value for name, value in facts.items() if value not in (None, [], "")}
    return table(
        [],
        (
            f'<td class="text">{escape(name)}</td><td class="text">{escape(_shown(value))}</td>'
            for name, value in known.items()
        ),
    )


def _cell(value: float | None) -> str:
    return f"<td>{'' if value is None else escape(_number(value))}</td>"


def _shown(value: Any) -> str:
    """A setting or fact as text."""
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value)
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"
