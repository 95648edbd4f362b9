"""Makes the run of a table's cell: for a ranker, `parlai train_model` and `eval_model` with merged flags.

Later flags override earlier ones, in this order: scale, family (bi, poly, cross, convert), model, start, task, row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.reproduce.runs import LAUNCHER, PROCESSES, ReproductionRun, Step
from benchmarks.reproduce.scales import Flags, Scale, Task
from benchmarks.reproduce.tables import Cell, Column, Row, Table
from polyencoder.errors import ConfigError, suggest_similar

_SMOKE = (
    *("--max-train-steps", "{updates}", "--num-epochs", "-1", "--validation-every-n-epochs", "-1"),
    *("--validation-max-exs", "8", "--short-final-eval", "true"),
)
_SOONER = {"warmup-updates": 0, "hard-negatives-every": 1}
"""Overrides for smoke tests, which would end before these flags have an effect."""


@dataclass(frozen=True)
class Model:
    """A kind of ranker: an agent and its flags."""

    agent: str
    family: str
    flags: Flags = field(default_factory=dict)


MODELS = {
    "bi": Model("biencoder", "bi"),
    "late": Model("lateencoder", "bi", {"turn-separator": "sep"}),
    "cross": Model("crossencoder", "cross"),
    "convert": Model("convert", "convert"),
    "convert-multi": Model("convert", "convert", {"extra-contexts": 10}),
}
"""All but poly-encoders: `poly-16` has 16 learned codes; `poly-16-first`, `-last` and `-first-last` use outputs, and
`poly-16-turns` the means of the latest 16 turns."""
_POLY = re.compile(r"poly-(?P<codes>\d+)(?:-(?P<vectors>first|last|first-last|turns))?")
_VECTORS: dict[str, Flags] = {
    "first": {"polyencoder-type": "n_first"},
    "last": {"polyencoder-type": "n_last"},
    "first-last": {"polyencoder-type": "first_n_last"},
    "turns": {"polyencoder-type": "turns", "turn-separator": "sep"},
}


def get_cell(scale: Scale, table: Table, row: Row, column: Column) -> Cell:
    """A table's cell at a scale, which may replace its task."""
    cell = table.get_cell(row, column)
    return replace(cell, task=scale.tables.get(table.name, {}).get(cell.task, cell.task))


def get_run(scale: Scale, cell: Cell, *, where: str) -> ReproductionRun:
    """The run whose number a cell shows.

    Raises:
        ConfigError: the scale lacks its task, start or run, or the row's settings contradict each other.
    """
    if cell.run:
        if cell.run not in scale.runs:
            raise ConfigError(
                f"{where}: scale {scale.name} has no run {cell.run}{suggest_similar(cell.run, scale.runs)}"
            )
        return scale.runs[cell.run]
    task = _get_part(scale.tasks, "tasks", cell.task, where)
    if not cell.model:
        return _build_counting_run(cell.task, task)
    start = _get_part(scale.starts, "starts", cell.start, where)
    model = _build_model(cell.model, where=where)
    parts = [scale.flags, scale.families.get(model.family, {}), model.flags]
    parts += [start.flags, start.families.get(model.family, {}), task.flags, task.families.get(model.family, {})]
    usual = _merge(parts)
    flags = _merge([usual, cell.flags])
    if flags != usual and not cell.variation:
        raise ConfigError(f"{where}: its flags differ from the usual ones; name them with `variation`")
    name = "-".join([cell.task, cell.start, cell.model, *([cell.variation] if flags != usual else [])])
    reasons = [task.missing, start.missing, str(flags.pop("missing", ""))]
    named = {k: v.replace("{task}", cell.task) if isinstance(v, str) else v for k, v in flags.items()}
    processes = int(scale.places.get(PROCESSES, 1))
    steps, amount = _build_steps(named, task=task, model=model, processes=processes, where=where)
    return ReproductionRun(
        name=name,
        steps=steps,
        **amount,
        files=task.files,
        seeds=task.seeds or scale.seeds,
        hours=task.hours.get(cell.model, task.hours.get("-".join(cell.model.split("-")[:2]))),
        missing="; ".join(reason for reason in reasons if reason),
    )


def explain_unavailable(scale: Scale, cell: Cell) -> str:
    """Why a cell cannot be measured at this scale; empty if it can."""
    task = scale.tasks.get(cell.task)
    return task.splits.get(cell.metric.partition("/")[0], "") if task else ""


def _build_model(name: str, *, where: str) -> Model:
    if name in MODELS:
        return MODELS[name]
    match = _POLY.fullmatch(name)
    if not match:
        raise ConfigError(f"{where}: unknown model {name}; it must be poly-N or one of {', '.join(MODELS)}")
    vectors = _VECTORS[match["vectors"]] if match["vectors"] else {}
    return Model("polyencoder", "poly", {"poly-n-codes": int(match["codes"]), **vectors})


def _build_counting_run(name: str, task: Task) -> ReproductionRun:
    """A run that counts the training and evaluation examples of a task."""
    read = {"pattern": r"episodes with a total of (?P<examples>\d+) examples"}
    steps = []
    for split, datatype in {"train": "train:ordered", "valid": "valid", "test": "test"}.items():
        if not task.splits.get(split):
            words = ["-t", task.teacher, "-dt", datatype, "--datapath", "{data}", "-n", "1"]
            steps.append(Step(split, ("parlai", "display_data", *words), read))
    return ReproductionRun(f"{name}-counts", steps, files=task.files, missing=task.missing)


def _merge(parts: Sequence[Flags]) -> dict[str, Any]:
    """Merge flags, later ones overriding; null removes a flag."""
    merged = {name: value for part in parts for name, value in part.items()}
    return {name: value for name, value in merged.items() if value is not None}


def _get_part(parts: Mapping[str, Any], kind: str, name: str, where: str) -> Any:
    if name not in parts:
        raise ConfigError(f"{where}: the scale's {kind} have no {name or 'name'}{suggest_similar(name, parts)}")
    return parts[name]


def _build_steps(
    flags: Flags, *, task: Task, model: Model, processes: int, where: str
) -> tuple[list[Step], dict[str, int]]:
    """ParlAI's commands that train a ranker, in one process or several that share each batch, and evaluate it.

    And the updates and examples of the training.
    """
    batch = int(flags["batchsize"])
    if batch % processes:
        raise ConfigError(f"{where}: a batch of {batch} cannot be shared by {processes} processes")
    flags = dict(_add_warm_up(flags, batch)) | {"batchsize": batch // processes}
    if (examples := flags.pop("examples", None)) is not None:
        flags["max-train-steps"] = math.ceil(int(examples) / batch)
    if ("max-train-steps" in flags) == ("num-epochs" in flags):
        raise ConfigError(f"{where}: needs either examples (or max-train-steps) or num-epochs")
    if "max-train-steps" in flags:
        amount = {"updates": int(flags["max-train-steps"]), "examples": int(flags["max-train-steps"]) * batch}
    else:
        amount = {"examples": math.ceil(float(flags["num-epochs"]) * task.examples)}
    common = ["-t", task.teacher, "--datapath", "{data}", "-m", model.agent, "-mf", "{folder}/model"]
    program = LAUNCHER if processes > 1 else ("parlai",)
    words = (*program, "train_model", *common, *_iter_words(flags), "--seed", "{seed}")
    smoke = (*_SMOKE, *_iter_words({name: value for name, value in _SOONER.items() if name in flags}))
    steps = [Step("train", words, {"training": "model"}, smoke)]
    for split, why in task.splits.items():
        if not why:
            report = f"{{folder}}/{split}.json"
            command = ["parlai", "eval_model", *common, "-dt", split, "--batchsize", str(flags["eval-batchsize"])]
            command += ["--report-filename", report, *_iter_words(task.evaluation)]
            steps.append(Step(split, tuple(command), {"report": report}, ("--num-examples", "8")))
    return steps, amount


def _add_warm_up(flags: Flags, batch: int) -> Iterator[tuple[str, Any]]:
    for name, value in flags.items():
        yield ("warmup-updates", math.ceil(int(value) / batch)) if name == "warmup-examples" else (name, value)


def _iter_words(flags: Flags) -> Iterator[str]:
    for name, value in flags.items():
        yield f"--{name}" if len(name) > 1 else f"-{name}"
        yield str(value).lower() if isinstance(value, bool) else str(value)
