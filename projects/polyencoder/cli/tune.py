"""`polyencoder tune`: searches settings of `polyencoder train` with Optuna."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from polyencoder.cli.shared.output import say, table
from polyencoder.errors import UsageError
from polyencoder.packages import require
from polyencoder.settings.tune import TuneSettings
from polyencoder.storage.files import check_writable_folder

if TYPE_CHECKING:
    from polyencoder.training.tuning import TrialReport, TuningReport


def tune_settings(settings: TuneSettings) -> None:
    """Search settings of `polyencoder train` with Optuna: a study of trials, each a run in a folder below --out.

    A study that was killed resumes. The validation data choose the best trial.
    """
    from polyencoder.training.console import logged
    from polyencoder.training.process_group import is_grouped
    from polyencoder.training.tuning import tune

    if is_grouped():
        raise UsageError("tune runs in one process: start it without torchrun")
    check_writable_folder(settings.data.out, argument="out")
    log = require("optuna", extra="tune").logging
    log.set_verbosity(log.WARNING)
    with logged(show=True):
        report = tune(settings)
    say(_trials(report))
    best, file = report.best, shlex.quote(str(report.settings))
    name, value = next(iter(best.measures.items()))
    say(f"best: trial {best.number}, {name} {value:.3f}, in {best.folder}")
    say(f"{report.settings}: written. Next: polyencoder train --config {file} --out FOLDER")


def _trials(report: TuningReport) -> str:
    """The trials, best first, with their values and main measures."""
    from polyencoder.training.tuning import shown_value

    measures = list(report.best.measures)
    rows = [["trial", *measures, *report.best.values]]
    for one in sorted(report.trials, key=lambda one: one.order, reverse=True):
        rows.append([str(one.number), *_measured(one, measures), *map(shown_value, one.values.values())])
    failed = [f"trial {one.number} failed: {one.failed}" for one in report.trials if one.failed]
    return "\n".join([table(rows), *failed])


def _measured(trial: TrialReport, names: list[str]) -> list[str]:
    return [f"{trial.measures[name]:.3f}" if name in trial.measures else "failed" for name in names]
