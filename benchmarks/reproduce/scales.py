"""Reads the scales at which tables are run: `scales/paper.yaml` (the paper's own settings), `small.yaml`, `base.yaml`.

A scale names tasks, starts (initial weights), flags of rankers, and runs of other commands. A scale that is `based_on`
another inherits its values and may override them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.reproduce.runs import ReproductionRun
from benchmarks.reproduce.yaml_schema import parse_fields
from polyencoder.errors import ConfigError, suggest_similar
from polyencoder.settings.base import read_yaml

SCALES = Path(__file__).parent / "scales"
Flags = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A task that rankers are trained and evaluated on."""

    teacher: str
    splits: Mapping[str, str]
    """The evaluated splits; a non-empty text says why a split cannot be evaluated."""
    files: list[str] = field(default_factory=list)
    """Below the data folder, with or without .gz; `a | b`: one of them suffices."""
    flags: Flags = field(default_factory=dict)
    families: Mapping[str, Flags] = field(default_factory=dict)
    evaluation: Flags = field(default_factory=dict)
    """Flags of evaluations only."""
    examples: int = 0
    """Training examples in an epoch."""
    hours: Mapping[str, float] = field(default_factory=dict)
    """Expected hours of one seed by model, training and evaluation together."""
    seeds: int | None = None
    missing: str = ""
    note: str = ""
    """Text of docs/results.md where this task replaces another one."""


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a ranker is initialized with."""

    title: str
    flags: Flags = field(default_factory=dict)
    families: Mapping[str, Flags] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True, eq=False)  # equal to itself alone: functions cache what they compute of it
class Scale:
    """One of `scales/`."""

    name: str
    title: str
    machine: str
    """The machine that the expected hours refer to."""
    seeds: int
    places: dict[str, str]
    """Values of `{name}` in flags, overridden by `--set`: encoders, folders, hub ids."""
    flags: Flags
    families: Mapping[str, Flags]
    tasks: Mapping[str, Task]
    starts: Mapping[str, InitialWeights]
    runs: Mapping[str, ReproductionRun]
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By table, replacements of tasks: fewer examples where a table has many rows."""


def list_scale_names() -> list[str]:
    """The names of all scales."""
    return sorted(path.stem for path in SCALES.glob("*.yaml"))


def read_scale(name: str) -> Scale:
    """Read a scale; ConfigError or InputError if it does not exist or its file is invalid."""
    if name not in list_scale_names():
        raise ConfigError(f"there is no scale {name}{suggest_similar(name, list_scale_names())}", argument="scale")
    path = SCALES / f"{name}.yaml"
    values = _read_document(path)
    runs = {
        key: parse_fields(ReproductionRun, run, where=f"{path.name}, runs, {key}", name=key)
        for key, run in values.pop("runs").items()
    }
    for key, run in runs.items():
        if not run.steps and not run.missing:
            raise ConfigError(f"{path.name}, runs, {key}: needs steps, or says why it is missing")
    return replace(parse_fields(Scale, values, where=path.name, name=name, runs={}), runs=runs)


def _read_document(path: Path) -> dict[str, Any]:
    """The values of a scale's file, merged over the scale that it is `based_on`."""
    values = read_yaml(path)
    base = values.pop("based_on", None)
    return values if base is None else _merge_over(_read_document(SCALES / f"{base}.yaml"), values)


def _merge_over(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; other values, including lists, are replaced."""
    merged = dict(base)
    for name, value in values.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge_over(merged[name], value) if both else value
    return merged
