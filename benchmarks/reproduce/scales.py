"""At which scale the tables are run: `scales/paper.yaml`, the paper's own settings, and `scales/small.yaml`.

A scale names tasks, starts (the weights that a ranker begins with), models, and runs of other commands. A ranker's
flags are those of all of its parts, the later going before the earlier: the scale's, its family's (bi, poly, cross,
convert), the model's, the start's, the task's, and the row's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.reproduce.documents import made, read_document, suggested
from benchmarks.reproduce.runs import Asked, Run, Step
from benchmarks.reproduce.tables import Cell, Column, Row, Table
from polyencoder.errors import ConfigError

__all__ = ["SCALES", "Scale", "cell_of", "read_scale", "run_of", "scale_names", "why_not"]

SCALES = Path(__file__).parent / "scales"
Flags = Mapping[str, Any]
_NEEDED = re.compile(r"\{(?P<kind>model|folder):(?P<run>[\w.-]+)\}")
_SMOKE = (
    *("--max-train-steps", "{updates}", "--num-epochs", "-1", "--validation-every-n-epochs", "-1"),
    *("--validation-max-exs", "8", "--short-final-eval", "true"),
)
_SOONER = {"warmup-updates": 0, "hard-negatives-every": 1}
"""Of a try, which has fewer updates than a row that has these flags lets pass before something happens."""


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
class Model:
    """A kind of ranker: an agent and its flags."""

    agent: str
    family: str
    flags: Flags = field(default_factory=dict)


MODELS = {
    "bi": Model("biencoder", "bi"),
    "cross": Model("crossencoder", "cross"),
    "convert": Model("convert", "convert"),
    "convert-multi": Model("convert", "convert", {"extra-contexts": 10}),
}
"""Beside the poly-encoders: `poly-16` has 16 learnt codes, `poly-16-first`, `-last` and `-first-last` have outputs."""
_POLY = re.compile(r"poly-(?P<codes>\d+)(?:-(?P<vectors>first|last|first-last))?")
_VECTORS = {"first": "n_first", "last": "n_last", "first-last": "first_n_last"}


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
    document = made(_Document, read_document(path), where=path.name)
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


def cell_of(scale: Scale, table: Table, row: Row, column: Column) -> Cell:
    """A table's cell as a scale has it, which may have another task there."""
    cell = table.cell(row, column)
    return replace(cell, task=scale.tables.get(table.name, {}).get(cell.task, cell.task))


def run_of(scale: Scale, cell: Cell, *, where: str) -> Run:
    """The run that a cell of a table is a number of.

    Raises:
        ConfigError: the scale does not know a part of it, or the row's settings contradict each other.
    """
    if cell.run:
        if cell.run not in scale.runs:
            raise ConfigError(f"{where}: scale {scale.name} has no run {cell.run}{suggested(cell.run, scale.runs)}")
        return scale.runs[cell.run]
    task = _part(scale.tasks, "tasks", cell.task, where)
    if not cell.model:
        return _counting(cell.task, task)
    start = _part(scale.starts, "starts", cell.start, where)
    model = _model(cell.model, where=where)
    parts = [scale.flags, scale.families.get(model.family, {}), model.flags]
    parts += [start.flags, start.families.get(model.family, {}), task.flags, task.families.get(model.family, {})]
    usual = _merged(parts)
    flags = _merged([usual, cell.flags])
    if flags != usual and not cell.variation:
        raise ConfigError(
            f"{where}: its flags differ from the usual ones, so that it needs a variation, a name for them"
        )
    name = "-".join([cell.task, cell.start, cell.model, *([cell.variation] if flags != usual else [])])
    reasons = [task.missing, start.missing]
    if "missing" in flags:
        reasons.append(str(flags["missing"]))
    named = {k: v.replace("{task}", cell.task) if isinstance(v, str) else v for k, v in flags.items() if k != "missing"}
    steps, asked = _steps(named, task=task, model=model, where=where)
    return Run(
        name=name,
        steps=steps,
        asked=asked,
        files=tuple(task.files),
        needs=_needs(steps),
        seeds=task.seeds or scale.seeds,
        hours=task.hours.get(cell.model, task.hours.get("-".join(cell.model.split("-")[:2]))),
        missing="; ".join(reason for reason in reasons if reason),
    )


def why_not(scale: Scale, cell: Cell) -> str:
    """Why a cell's number cannot be had at this scale, whatever is run; empty if it can."""
    task = scale.tasks.get(cell.task)
    return task.splits.get(cell.metric.partition("/")[0], "") if task else ""


def _model(name: str, *, where: str) -> Model:
    if name in MODELS:
        return MODELS[name]
    found = _POLY.fullmatch(name)
    if not found:
        raise ConfigError(f"{where}: there is no model {name}; it must be poly-N or one of {', '.join(MODELS)}")
    vectors = {"polyencoder-type": _VECTORS[found["vectors"]]} if found["vectors"] else {}
    return Model("polyencoder", "poly", {"poly-n-codes": int(found["codes"]), **vectors})


def _counting(name: str, task: Task) -> Run:
    """How many examples a task has in training and in each part that is evaluated."""
    read = {"pattern": r"episodes with a total of (?P<examples>\d+) examples"}
    steps = []
    for split, datatype in {"train": "train:ordered", "valid": "valid", "test": "test"}.items():
        if not task.splits.get(split):
            words = ["-t", task.teacher, "-dt", datatype, "--datapath", "{data}", "-n", "1"]
            steps.append(Step(split, ("parlai", "display_data", *words), read))
    return Run(
        name=f"{name}-counts",
        steps=tuple(steps),
        asked=Asked(),
        files=tuple(task.files),
        needs={},
        seeds=1,
        hours=None,
        missing=task.missing,
    )


def _merged(parts: Sequence[Flags]) -> dict[str, Any]:
    """The flags of all, the later before the earlier; null takes one away."""
    merged = {name: value for part in parts for name, value in part.items()}
    return {name: value for name, value in merged.items() if value is not None}


def _part(parts: Mapping[str, Any], kind: str, name: str, where: str) -> Any:
    if name not in parts:
        raise ConfigError(f"{where}: the scale's {kind} have no {name or 'name'}{suggested(name, parts)}")
    return parts[name]


def _steps(flags: Flags, *, task: Task, model: Model, where: str) -> tuple[tuple[Step, ...], Asked]:
    """Training and the evaluations of a ranker, as ParlAI's commands."""
    batch = int(flags["batchsize"])
    flags = dict(_warmed_up(flags, batch))
    if (examples := flags.pop("examples", None)) is not None:
        flags["max-train-steps"] = math.ceil(int(examples) / batch)
    if ("max-train-steps" in flags) == ("num-epochs" in flags):
        raise ConfigError(f"{where}: needs either examples (or max-train-steps) or num-epochs")
    if "max-train-steps" in flags:
        asked = Asked(updates=int(flags["max-train-steps"]), examples=int(flags["max-train-steps"]) * batch)
    else:
        asked = Asked(examples=math.ceil(float(flags["num-epochs"]) * task.examples))
    common = ["-t", task.teacher, "--datapath", "{data}", "-m", model.agent, "-mf", "{folder}/model"]
    words = ("parlai", "train_model", *common, *_words(flags), "--seed", "{seed}")
    smoke = (*_SMOKE, *_words({name: value for name, value in _SOONER.items() if name in flags}))
    steps = [Step("train", words, {"training": "model"}, smoke)]
    for split, why in task.splits.items():
        if not why:
            report = f"{{folder}}/{split}.json"
            command = ["parlai", "eval_model", *common, "-dt", split, "--batchsize", str(flags["eval-batchsize"])]
            command += ["--report-filename", report, *_words(task.evaluation)]
            steps.append(Step(split, tuple(command), {"report": report}, ("--num-examples", "8")))
    return tuple(steps), asked


def _needs(steps: Sequence[Step]) -> dict[str, bool]:
    """The runs whose folders the commands of another one name; True where each seed has one of its own."""
    found = [one for step in steps for word in step.command for one in _NEEDED.finditer(word)]
    return {
        one["run"]: any(other["kind"] == "model" and other["run"] == one["run"] for other in found) for one in found
    }


def _warmed_up(flags: Flags, batch: int) -> Iterator[tuple[str, Any]]:
    """The flags with the updates in which so many examples are had, for `warmup-examples`."""
    for name, value in flags.items():
        yield ("warmup-updates", math.ceil(int(value) / batch)) if name == "warmup-examples" else (name, value)


def _words(flags: Flags) -> Iterator[str]:
    for name, value in flags.items():
        yield f"--{name}" if len(name) > 1 else f"-{name}"
        yield str(value).lower() if isinstance(value, bool) else str(value)


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
        needs=_needs(steps),
        seeds=plain.seeds,
        hours=plain.hours,
        missing=plain.missing,
    )
