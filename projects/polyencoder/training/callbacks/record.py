"""Records a run's options, versions and machine in a JSON file, for reproducibility."""

from __future__ import annotations

import json
import logging
import os
import platform
import resource
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from polyencoder.packages import PACKAGES, get_version
from polyencoder.storage.files import write_text
from polyencoder.training.callbacks.base import Callback, Run

_log = logging.getLogger(__name__)


class Record(Callback):
    """Writes a run's options and, for each start, time, command, versions and memory. Follows `Checkpoints`."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        self.path, self._options = os.fspath(path), dict(options)

    def on_start(self, run: Run) -> None:
        start = {
            "time": _format_now(),
            "command": shlex.join(sys.argv),
            "updates": run.updates.count,
            "versions": {"python": platform.python_version(), **{name: get_version(name) for name in PACKAGES}},
            "machine": {"platform": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
            | {"gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]},
        }
        starts = [*(_read_starts(self.path) if run.updates.count else []), start]
        self._write(starts)

    def on_end(self, run: Run) -> None:
        starts = _read_starts(self.path)
        if starts:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # resident; in kilobytes, but on macOS in bytes
            end = {"time": _format_now(), "peak_bytes": peak if sys.platform == "darwin" else 1024 * peak}
            if torch.cuda.is_initialized():
                end["gpu_peak_bytes"] = max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
            starts[-1]["end"] = end
            self._write(starts)

    def _write(self, starts: list[dict[str, Any]]) -> None:
        record = {"format": 1, "seed": self._options.get("seed"), "starts": starts, "options": self._options}
        record["folder"] = os.getcwd()  # to which names of files are relative
        try:
            write_text(self.path, json.dumps(record, indent=2, default=str) + "\n")
        except OSError as error:
            _log.error("%s could not be written: %s", self.path, error.strerror)


def _format_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _read_starts(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    try:
        return list(json.loads(Path(path).read_text(encoding="utf-8"))["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
