"""Searches settings of a run with Optuna: a study of trials, each an ordinary run in a folder of its own.

>>> report = tune(TuneSettings(backbone="sentence-transformers/all-MiniLM-L6-v2", train="my/train.jsonl",
...                            valid="my/valid.jsonl", out="runs/study", search=("learning_rate=1e-5:1e-3:log",)))
"""

from __future__ import annotations

import gc
import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml

from polyencoder.data.pairs import data_files
from polyencoder.errors import CheckpointError, ConfigError, InputError, TrainingError, first_line
from polyencoder.evaluation.names import main_measures
from polyencoder.packages import require
from polyencoder.settings.base import flat_values
from polyencoder.settings.tune import Range, TuneSettings
from polyencoder.storage.files import write_text
from polyencoder.storage.names import CONFIG, WEIGHTS
from polyencoder.training.folder import CHECKPOINT, RESUME_IGNORES
from polyencoder.training.lock import TrainingLock
from polyencoder.training.run import train_ranker

_log = logging.getLogger(__name__)

STUDY = "study.sqlite"
NAME = "study"  # in its database, whatever the folder's name becomes
BEST = "best.yaml"


@dataclass(frozen=True)
class TrialReport:
    """One trial: its values of the searched settings, and the main measures on validation data."""

    number: int
    values: Mapping[str, Any]
    folder: Path
    measures: Mapping[str, float] = field(default_factory=dict)
    """Of the run's best evaluation; empty if it failed."""
    failed: str | None = None
    """Why it has no measures."""

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key, higher is better: the first measure, then MRR, then the loss, negated."""
        if not self.measures:
            return (-math.inf,)
        return next(iter(self.measures.values())), self.measures.get("MRR", 0.0), -self.measures.get("loss", 0.0)


@dataclass(frozen=True)
class TuningReport:
    """The trials of a study, in their order, and the best one; `settings` is its YAML file for `polyencoder train`."""

    trials: list[TrialReport]
    best: TrialReport
    settings: Path


def tune(settings: TuneSettings) -> TuningReport:
    """Runs a study, or the rest of one that was killed: an interrupted trial resumes from its checkpoint.

    Trials are compared by their best evaluations on the validation data. The values of a trial depend on the seed and
    the earlier trials alone, so a study that was killed has the trials of one that was not.

    Raises:
        ConfigError: settings that contradict each other, or Optuna is not installed.
        InputError: invalid data.
        TrainingError: all trials failed, or another process runs this study.
        CheckpointError: the folder holds a study with other settings, or a model.
    """
    optuna = require("optuna", extra="tune")
    settings.check()
    for files in (settings.data.train, settings.data.valid):
        if files:
            data_files(files)
    out = Path(settings.data.out)
    if (out / CONFIG).is_file():
        raise CheckpointError(f"{out}: holds a model; give another folder for the study", argument="out")
    if (out / BEST).exists() and not (out / STUDY).exists():
        raise CheckpointError(f"{out}: holds {BEST}, but no study ({STUDY}); give another folder", argument="out")
    lock = TrainingLock(out / STUDY, argument="out")
    study = None
    try:
        study = _Study(optuna, _open(optuna, settings, out / STUDY), settings, out)
        return study.run()
    except (ConfigError, InputError, CheckpointError):
        if study is not None and not study.finished():  # other settings, or another folder, may be given next
            (out / STUDY).unlink()
        raise
    finally:
        lock.release()
        with suppress(OSError):
            out.rmdir()  # of a study that never began


class _Study:
    """A study in its folder; Optuna has the trials' values and measures, the study's attributes all else."""

    def __init__(self, optuna: Any, study: Any, settings: TuneSettings, out: Path) -> None:
        self._optuna, self._study, self._settings, self._out = optuna, study, settings, out
        self._space = {name: _distribution(optuna, values) for name, values in settings.space.items()}
        self._state = optuna.trial.TrialState

    def run(self) -> TuningReport:
        """Runs the trials that are left."""
        combinations, wanted = _combinations(self._settings.space, at_most=self._settings.trials), self._settings.trials
        if combinations:
            _log.info("the settings have %d combinations: all are tried", len(combinations))
        for trial in self._study.get_trials(states=(self._state.RUNNING,)):  # interrupted
            if len(trial.params) == len(self._space):
                self._try(trial.number, trial.params)
            else:  # while its values were drawn
                self._study.tell(trial.number, state=self._state.FAIL)
        while True:
            finished = self.finished()
            left = [one for one in combinations if one not in [trial.values for trial in finished]]
            if not left if combinations else len(finished) >= wanted:
                return self._report()
            seed = abs(self._settings.training.seed) % 2**31 + len(finished)
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            if left and not self._study.get_trials(states=(self._state.WAITING,)):  # else killed before it was drawn
                self._study.enqueue_trial(left[0])
            trial = self._study.ask(self._space)
            self._try(trial.number, trial.params)

    def finished(self) -> list[TrialReport]:
        """The finished trials, in their order."""
        notes = self._study.user_attrs
        return [
            TrialReport(one.number, one.params, self._folder(one.number), **notes[f"trial-{one.number}"])
            for one in self._study.get_trials(states=(self._state.COMPLETE, self._state.FAIL))
            if f"trial-{one.number}" in notes
        ]

    def _folder(self, number: int) -> Path:
        return self._out / f"trial-{number}"

    def _try(self, number: int, values: Mapping[str, Any]) -> None:
        """Runs or resumes a trial, unless an earlier one had the same values, and keeps its measures."""
        shown = ", ".join(f"{name} {shown_value(value)}" for name, value in values.items())
        measures = next((one.measures for one in self.finished() if one.measures and one.values == values), {})
        if not measures:
            _log.info("trial %d: %s", number, shown)
            try:
                run = self._settings.trial(values, out=str(self._folder(number)))
                measures = main_measures(train_ranker(run).trained)
            except (ConfigError, InputError, TrainingError, torch.OutOfMemoryError) as error:
                argument = getattr(error, "argument", None)
                other_process = isinstance(error, TrainingError) and argument == "out"
                of_data = isinstance(error, InputError) and argument not in values
                if other_process or of_data or (isinstance(error, ConfigError) and not self.finished()):
                    raise
                self._tell(number, failed=first_line(error))
                return
            finally:
                gc.collect()  # a run's parts refer to each other
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        self._tell(number, measures=measures)
        name, value = next(iter(measures.items()))
        _log.info("trial %d: %s %.3f with %s", number, name, value, shown)

    def _tell(self, number: int, *, measures: Mapping[str, float] | None = None, failed: str | None = None) -> None:
        self._study.set_user_attr(f"trial-{number}", {"measures": dict(measures or {}), "failed": failed})
        if measures:
            self._study.tell(number, next(iter(measures.values())))
            self._drop_weights()
        else:
            _log.warning("trial %d failed: %s", number, failed)
            self._study.tell(number, state=self._state.FAIL)

    def _drop_weights(self) -> None:
        """Deletes models and checkpoints of all trials but the best; their records remain."""
        finished = self.finished()
        best = max(finished, key=lambda one: one.order)
        for one in [] if self._settings.keep_all else finished:
            for name in (CHECKPOINT, WEIGHTS) if one.number != best.number else ():
                (one.folder / name).unlink(missing_ok=True)

    def _report(self) -> TuningReport:
        trials = self.finished()
        measured = [one for one in trials if one.measures]
        if not measured:
            raise TrainingError(f"{self._out}: all trials failed; the last one: {trials[-1].failed}")
        self._drop_weights()
        best = max(measured, key=lambda one: one.order)
        run = self._settings.trial(best.values, out="out")
        values = {name: value for name, value in flat_values(run).items() if name in run.given and name != "out"}
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        write_text(self._out / BEST, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
        return TuningReport(trials, best, self._out / BEST)


def _open(optuna: Any, settings: TuneSettings, path: Path) -> Any:
    """Opens or creates the study; raises CheckpointError if it was begun with other settings."""
    sqlalchemy = require("sqlalchemy", extra="tune")
    if odd := sorted({*str(path)} & {*"?{}"}):
        raise ConfigError(f"{path.parent}: {odd[0]!r} is not possible in the path of a study's folder", argument="out")
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{path}", study_name=NAME, direction="maximize", load_if_exists=True
        )
        stored = study.user_attrs.get("settings")
    except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise CheckpointError(f"{path}: cannot be opened ({first_line(error)})", argument="out") from None
    own = {name: value for name, value in settings.common.items() if name not in RESUME_IGNORES}
    own = json.loads(json.dumps(own | {"search": list(settings.search)}, default=str))
    if stored is None:
        study.set_user_attr("settings", own)
    elif stored != own:
        name = next(name for name in [*own, *stored] if own.get(name) != stored.get(name))
        raise CheckpointError(
            f"{path.parent}: the study was begun with {name} {stored.get(name)!r}, not {own.get(name)!r}; "
            "give the same settings, or another folder",
            argument="out",
        )
    return study


def _distribution(optuna: Any, values: Range | tuple[str, ...]) -> Any:
    kinds = optuna.distributions
    if not isinstance(values, Range):
        return kinds.CategoricalDistribution(values)
    low, high = values.ends
    if isinstance(low, int):
        return kinds.IntDistribution(low, int(high), log=values.log, step=int(values.step or 1))
    return kinds.FloatDistribution(low, high, log=values.log, step=values.step)


def _combinations(space: Mapping[str, Range | tuple[str, ...]], *, at_most: int) -> list[dict[str, Any]]:
    """All combinations of values, if there are no more than `at_most`; else an empty list."""
    values: list[Sequence[Any]] = []
    for one in space.values():
        if isinstance(one, Range) and (one.log or not isinstance(one.low, int)):
            return []
        if isinstance(one, Range):
            values.append(range(int(one.low), int(one.high) + 1, int(one.step or 1)))
        else:
            values.append(one)
    if math.prod(map(len, values)) > at_most:
        return []
    return [dict(zip(space, one, strict=True)) for one in product(*values)]


def shown_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
