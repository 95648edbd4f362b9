"""Scales at which the tables are run: `scales/paper.yaml`, the paper's own settings, `small.yaml` and `base.yaml`.

A scale names tasks, starts (the weights that a ranker begins with), flags of rankers, and runs of other commands. One
that is `based_on` another has its values where it names none itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reproduce.documents import made, read_document, suggested
from benchmarks.reproduce.runs import Asked, Run, Step
from polyencoder.errors import ConfigError

__all__ = ["SCALES", "Flags", "Scale", "Task", "read_scale", "scale_names"]

SCALES = Path(__file__).parent / "scales"
Flags = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What a ranker learns and is measured on."""

    teacher: str
    splits: Mapping[str, str]
    """The parts that are evaluated; a text says why one cannot be."""
    files: list[str] = field(default_factory=list)
    """Below the data folder, which may end in .gz; `a | b` where one of several will do."""
    flags: Flags = field(default_factory=dict)
    families: Mapping[str, Flags] = field(default_factory=dict)
    evaluation: Flags = field(default_factory=dict)
    """Of evaluations alone."""
    examples: int = 0
    """Of training, in an epoch."""
    hours: Mapping[str, float] = field(default_factory=dict)
    """Expected of one seed, by model, training and evaluation."""
    seeds: int | None = None
    missing: str = ""
    note: str = ""
    """What the page says of a task that stands for another one."""


@dataclass(frozen=True)
class Start:
    """The weights that a ranker begins with."""

    title: str
    flags: Flags = field(default_factory=dict)
    families: Mapping[str, Flags] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True)
class Scale:
    """One of `scales/`."""

    name: str
    title: str
    machine: str
    """What the expected hours are of."""
    seeds: int
    places: dict[str, str]
    """What stands for `{name}` in flags, and `--set` changes: encoders, folders, hub ids."""
    flags: Flags
    families: Mapping[str, Flags]
    tasks: Mapping[str, Task]
    starts: Mapping[str, Start]
    runs: Mapping[str, Run]
    tables: Mapping[str, Mapping[str, str]]
    """By table, tasks that stand there for others, of fewer examples where the rows are many."""


def scale_names() -> list[str]:
    """The scales that there are."""
    return sorted(path.stem for path in SCALES.glob("*.yaml"))


def read_scale(name: str) -> Scale:
    """The scale of that name; ConfigError if there is none, or its file is wrong."""
    if name not in scale_names():
        raise ConfigError(f"there is no scale {name}{suggested(name, scale_names())}", argument="scale")
    path = SCALES / f"{name}.yaml"
    document = made(_Document, _document(path), where=path.name)
    parts: dict[str, Any] = {}
    kinds: dict[str, type] = {"tasks": Task, "starts": Start}
    for part, kind in kinds.items():
        values = getattr(document, part)
        parts[part] = {key: made(kind, of, where=f"{path.name}, {part}, {key}") for key, of in values.items()}
    runs = {key: _plain_run(key, of, where=f"{path.name}, runs, {key}") for key, of in document.runs.items()}
    return Scale(
        name=name,
        title=document.title,
        machine=document.machine,
        seeds=document.seeds,
        places=document.places,
        flags=document.flags,
        families=document.families,
        runs=runs,
        tables=document.tables,
        **parts,
    )


def _document(path: Path) -> dict[str, Any]:
    """The values of a scale's file, over those of the scale that it is `based_on`."""
    values = read_document(path)
    base = values.pop("based_on", None)
    return values if base is None else _over(_document(SCALES / f"{base}.yaml"), values)


def _over(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged; other values, lists among them, are replaced."""
    merged = dict(base)
    for name, value in values.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _over(merged[name], value) if both else value
    return merged


@dataclass(frozen=True)
class _Document:
    title: str
    machine: str
    seeds: int
    places: dict[str, str]
    flags: dict[str, Any]
    families: dict[str, Any]
    tasks: dict[str, Any]
    starts: dict[str, Any]
    runs: dict[str, Any]
    tables: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _PlainRun:
    steps: list[Any] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    seeds: int = 1
    hours: float | None = None
    examples: int = 0
    """That it learns from; its step says `read: {learnt: true}`, and prints `updates` and `examples`."""
    updates: int = 0
    missing: str = ""


@dataclass(frozen=True)
class _PlainStep:
    name: str
    command: str
    read: dict[str, Any] = field(default_factory=dict)
    smoke: str = ""


def _plain_run(name: str, values: object, *, where: str) -> Run:
    """A run of commands that the scale writes out."""
    plain = made(_PlainRun, values, where=where)
    steps = []
    for number, of in enumerate(plain.steps, start=1):
        step = made(_PlainStep, of, where=f"{where}, step {number}")
        steps.append(Step(step.name, tuple(step.command.split()), step.read, tuple(step.smoke.split())))
    if not steps and not plain.missing:
        raise ConfigError(f"{where}: needs steps, or says why it is missing")
    return Run(
        name=name,
        steps=tuple(steps),
        asked=Asked(updates=plain.updates, examples=plain.examples),
        files=tuple(plain.files),
        seeds=plain.seeds,
        hours=plain.hours,
        missing=plain.missing,
    )
