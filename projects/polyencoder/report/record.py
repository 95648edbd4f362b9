"""Reads what a run folder of `polyencoder train` records of its training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyencoder.errors import CheckpointError, first_line
from polyencoder.export.card import measured
from polyencoder.settings.fields import leaves
from polyencoder.settings.train import TrainSettings
from polyencoder.training.callbacks.checkpoints import read_checkpoint
from polyencoder.training.callbacks.curve import Points
from polyencoder.training.folder import CHECKPOINT, RECORD


@dataclass(frozen=True)
class RunRecord:
    """The record of a run; what was not recorded is empty or None."""

    folder: Path
    options: Mapping[str, Any]
    """Its settings by their flat names, with all defaults."""
    starts: list[dict[str, Any]]
    """Each start: time, command, versions, machine, and `end` with the largest memory."""
    points: Points = field(default_factory=dict)
    """This and what follows are the checkpoint's. Of the curve: `training` and `validation`."""
    measures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The main measures of the kept model and of the baselines, by their names."""
    progress: Mapping[str, float] = field(default_factory=dict)
    """`examples`, `batches`, `updates` and `seconds`, evaluations included."""
    kept: int | None = None
    """The updates of the kept model; 0 for the one before training."""
    stopped: str | None = None
    """Why the run ended before its goal, if it did."""

    @property
    def changed(self) -> Iterator[tuple[str, Any, Any]]:
        """(name, value, default) of each setting whose value is not the default; None for one that must be given.

        Defaults are those of the run's architecture.
        """
        known = leaves(TrainSettings)
        presets = {**TrainSettings.presets(self.options), "architecture": known["architecture"].default}
        for name, value in self.options.items():
            default = presets.get(name, known[name].default if name in known else None)
            default = None if default is dataclasses.MISSING else json.loads(json.dumps(default, default=str))
            if value != default:
                yield name, value, default

    @property
    def examples_per_second(self) -> float | None:
        """The speed of the whole run, with its evaluations."""
        seconds = self.progress.get("seconds")
        return self.progress["examples"] / seconds if seconds else None


def read_run_record(folder: Path) -> RunRecord:
    """Reads the record of a run and, if there is one, its checkpoint, from which no code runs.

    Raises:
        CheckpointError: the folder is no run of `polyencoder train`, or a file of it is damaged.
    """
    path, checkpoint = folder / RECORD, folder / CHECKPOINT
    if not path.is_file():
        raise CheckpointError(f"{folder}: no training run: it has no {RECORD}; give the folder of `polyencoder train`")
    try:
        record = json.loads(path.read_bytes())
        options, starts = dict(record["options"]), [_start(start) for start in record["starts"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {first_line(error)})") from None
    needed = {"train": str, "architecture": str, "seed": int, "num_negatives": int}
    if not all(isinstance(options.get(name), kind) for name, kind in needed.items()):
        raise CheckpointError(f"{folder}: no run of `polyencoder train`: another command recorded {RECORD}")
    if not checkpoint.is_file():
        return RunRecord(folder, options, starts)
    again = "make the report with the version that trained the model"
    run = read_checkpoint(checkpoint, instead=again, mmap=True)["run"]
    try:
        states = run["callbacks"][0]  # of the first process
        baselines, best = states["baselines"], states["best"]
        measures = measured(
            trained=best["report"] or {},
            before=baselines["before"],
            stands_in=baselines["stands_in"],
            tfidf=baselines["tfidf"],
        )
        return RunRecord(
            folder,
            options,
            starts,
            points=states["curve"]["points"],
            measures=measures,
            progress=run["progress"],
            kept=best["updates"],
            stopped=run["stopped"],
        )
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}: has no {error}: another version wrote it; {again}") from None


def _start(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, **{name: dict(values.get(name) or {}) for name in ("versions", "machine", "end")}}
