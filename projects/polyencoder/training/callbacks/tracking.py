"""Reports a run's figures to experiment trackers, locally unless WANDB_MODE of Weights & Biases says otherwise."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyencoder.errors import PolyencoderError, TrainingError, get_first_line
from polyencoder.evaluation.names import select_main_measures
from polyencoder.packages import require
from polyencoder.settings.training import TrackerName, TrackerSettings
from polyencoder.storage.names import RECORD
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.curve import LearningCurve
from polyencoder.training.callbacks.log import AMONG
from polyencoder.training.callbacks.record import Record
from polyencoder.training.folder import FOLDER
from polyencoder.training.objective import Outcome

_log = logging.getLogger(__name__)

NOT_FIGURES = ("updates", AMONG)


def build_recorders(
    trackers: TrackerSettings, curve: LearningCurve, *, out: Path, options: Mapping[str, Any]
) -> list[Callback]:
    """The callbacks that record a run in its folder `out`: `run.json`, and the configured trackers."""
    record = Record(out / RECORD, options)
    if not trackers.report_to:
        return [record]
    name = out.resolve().name
    return [record, Tracking(trackers.report_to, curve, folder=out / FOLDER, name=name, options=options)]


class Tracking(Callback):
    """Logs the points of a curve as `train/...` and evaluations as `valid/...`, by the number of updates.

    Comes after the curve and after `Checkpoints`, which resumes the run. A tracker that fails later than at the start
    is left out with a warning: it does not end the run. folder: for the files of trackers.
    """

    name = "tracking"
    stored = ("_ids", "_logged")

    def __init__(
        self,
        names: Sequence[TrackerName],
        curve: LearningCurve,
        *,
        folder: Path,
        name: str,
        options: Mapping[str, Any],
    ) -> None:
        self._names, self._curve, self._folder = names, curve, folder
        self._run, self._options = name, dict(options)
        self._ids: dict[str, str] = {}
        self._trackers: dict[str, Tracker] = {}
        self._logged = 0  # updates of the last point

    def on_start(self, run: Run) -> None:
        for name in dict.fromkeys(self._names):
            run_id = self._ids.get(name)
            try:
                tracker = Tracker(
                    name, self._folder, run=self._run, options=self._options, id=run_id, step=run.updates.count
                )
            except PolyencoderError:
                raise
            except Exception as error:  # whatever its package, its server or the disk do
                raise TrainingError(f"{name}: cannot be reported to ({get_first_line(error)})") from error
            self._ids[name] = tracker.id
            self._trackers[name] = tracker

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        for point in self._curve.points["training"]:
            if point["updates"] > self._logged:
                self._log("train", point, step=int(point["updates"]))
                self._logged = int(point["updates"])

    def on_evaluation(self, run: Run, report: Mapping[str, float]) -> None:
        self._log("valid", select_main_measures(report) or report, step=run.updates.count)

    def on_end(self, run: Run) -> None:
        self._close(failed=False)

    def on_failure(self, run: Run) -> None:
        self._close(failed=True)

    def _close(self, *, failed: bool) -> None:
        self._ask_each(lambda tracker: tracker.close(failed=failed))
        self._trackers.clear()

    def _log(self, part: str, figures: Mapping[str, float], *, step: int) -> None:
        numbers = {f"{part}/{name}": float(value) for name, value in figures.items() if name not in NOT_FIGURES}
        self._ask_each(lambda tracker: tracker.log(numbers, step=step))

    def _ask_each(self, ask: Callable[[Tracker], None]) -> None:
        for name, tracker in [*self._trackers.items()]:
            try:
                ask(tracker)
            except Exception as error:
                del self._trackers[name]
                _log.warning("%s: the rest of the run is not reported there (%s)", name, get_first_line(error))


class Tracker:
    """A run of TensorBoard or of Weights & Biases, in files of the run's folder unless WANDB_MODE is set.

    run: its name. options: its settings. id: of the tracker's run to continue; None for a new one, whose id it then
    has. step: updates so far; later figures of a killed run are replaced.
    """

    def __init__(
        self, kind: TrackerName, folder: Path, *, run: str, options: Mapping[str, Any], id: str | None, step: int
    ) -> None:
        self._wandb: Any = None
        self._events: Any = None
        if kind == "wandb":
            self.id = id or uuid.uuid4().hex[:8]
            self._wandb = require("wandb", extra="wandb").init(
                id=self.id,
                name=run,
                project=os.environ.get("WANDB_PROJECT", "polyencoder"),
                dir=os.fspath(folder),
                config=dict(options),
                mode=os.environ.get("WANDB_MODE", "offline"),
                resume=None if id is None else "allow",
            )
            return
        require("tensorboard", extra="tensorboard")
        from torch.utils.tensorboard.writer import SummaryWriter

        self.id = id or run
        self._events = SummaryWriter(os.fspath(folder / "tensorboard"), purge_step=step + 1)
        if id is None:
            rows = "".join(f"| {key} | {value} |\n" for key, value in options.items())
            self._events.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}")

    def log(self, figures: Mapping[str, float], *, step: int) -> None:
        """Adds figures, by names such as `train/loss`."""
        if self._events is None:
            self._wandb.log(dict(figures), step=step)
            return
        for name, value in figures.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()  # else a kill takes figures of before the last checkpoint

    def close(self, *, failed: bool = False) -> None:
        """Ends the run, or this part of it."""
        if self._events is None:
            self._wandb.finish(exit_code=int(failed))
        else:
            self._events.close()


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Raises ConfigError for a tracker whose package is not installed, before a run begins."""
    for name in names:
        require(name, extra=name)
