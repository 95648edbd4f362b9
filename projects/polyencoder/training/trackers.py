"""Experiment trackers that a run reports to, each through its own package.

Nothing leaves the machine unless the package's own environment variables say so (`WANDB_MODE`, `TRACKIO_SPACE_ID`,
`MLFLOW_TRACKING_URI`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyencoder.packages import require
from polyencoder.settings.training import TrackerName


class TensorBoard:
    """Event files in the run's folder, which TensorBoard shows.

    Args:
        folder: of the run's files. name: of the run. options: its settings.
        id: of the run to continue; None for a new one. step: updates so far; later ones of a killed run are replaced.

    Attributes:
        id: with which a resumed run continues it.
    """

    def __init__(self, folder: Path, *, name: str, options: Mapping[str, Any], id: str | None, step: int) -> None:
        require("tensorboard", extra="tensorboard")
        from torch.utils.tensorboard.writer import SummaryWriter

        self.id = id or name
        self._writer = SummaryWriter(os.fspath(folder / "tensorboard"), purge_step=step + 1)
        if id is None:
            rows = "".join(f"| {key} | {value} |\n" for key, value in options.items())
            self._writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}")

    def log(self, figures: Mapping[str, float], *, step: int) -> None:
        """Adds figures, by names such as `train/loss`."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # else a kill takes figures of before the last checkpoint

    def close(self, *, failed: bool = False) -> None:
        """Ends the run, or this part of it."""
        self._writer.close()


class _Run:
    """A run that its package's own object logs and finishes."""

    _run: Any

    def log(self, figures: Mapping[str, float], *, step: int) -> None:
        self._run.log(dict(figures), step=step)

    def close(self, *, failed: bool = False) -> None:
        self._run.finish()


class WandB(_Run):
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise; arguments as for `TensorBoard`."""

    def __init__(self, folder: Path, *, name: str, options: Mapping[str, Any], id: str | None, step: int) -> None:
        wandb = require("wandb", extra="wandb")
        self.id = id or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            id=self.id,
            name=name,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.fspath(folder),
            config=dict(options),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume=None if id is None else "allow",
        )

    def close(self, *, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


class Trackio(_Run):
    """A run of Trackio, in its local database unless TRACKIO_SPACE_ID is set; arguments as for `TensorBoard`."""

    def __init__(self, folder: Path, *, name: str, options: Mapping[str, Any], id: str | None, step: int) -> None:
        trackio = require("trackio", extra="trackio")
        self.id = id or f"{name}-{uuid.uuid4().hex[:8]}"
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self.id,
            config=dict(options),
            resume="never" if id is None else "allow",
            embed=False,
        )


class MLflow:
    """A run of MLflow, in the run's folder unless MLFLOW_TRACKING_URI is set; arguments as for `TensorBoard`."""

    def __init__(self, folder: Path, *, name: str, options: Mapping[str, Any], id: str | None, step: int) -> None:
        mlflow = require("mlflow", extra="mlflow")
        local = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", local))
        self.id = id or self._new_run(name, options)
        self._client.update_run(self.id, status="RUNNING")

    def _new_run(self, name: str, options: Mapping[str, Any]) -> str:
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(project)
        experiment = self._client.create_experiment(project) if known is None else known.experiment_id
        run = str(self._client.create_run(experiment, run_name=name).info.run_id)
        for key, value in options.items():
            self._client.log_param(run, key, str(value))
        return run

    def log(self, figures: Mapping[str, float], *, step: int) -> None:
        for name, value in figures.items():
            self._client.log_metric(self.id, name.replace("@", "_at_"), value, step=step)  # it takes no @

    def close(self, *, failed: bool = False) -> None:
        self._client.set_terminated(self.id, status="FAILED" if failed else "FINISHED")


PROJECT = "polyencoder"
"""The project or experiment of runs, where the environment names no other."""
Tracker = TensorBoard | WandB | Trackio | MLflow
TRACKERS: dict[TrackerName, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Raises ConfigError for a tracker whose package is not installed, before a run begins."""
    for name in names:
        require(name, extra=name)
