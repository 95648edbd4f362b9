"""The folder of a run: the model, and `training/` with checkpoint and record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyencoder.errors import CheckpointError
from polyencoder.export.folder import README
from polyencoder.pictures import CURVE, RELIABILITY
from polyencoder.storage.files import discard_leftovers
from polyencoder.storage.names import CONFIG, MODULE_CONFIG, MODULE_WEIGHTS, RECORD, TOKENIZER, WEIGHTS
from polyencoder.storage.publish import discard_unfinished
from polyencoder.training.distributed import Processes
from polyencoder.training.lock import TrainingLock

FOLDER = "training"
CHECKPOINT = f"{FOLDER}/checkpoint.pt"
TEACHER_SCORES = f"{FOLDER}/teacher.sqlite"

_REPLACED = (CONFIG, MODULE_CONFIG, README, TOKENIZER, WEIGHTS, MODULE_WEIGHTS)
_RUN_FILES = (RECORD, CHECKPOINT, f"{CHECKPOINT}.lock")  # the last alone after a kill at the start

RESUME_IGNORES = {"out", "device", "config", "report_to", "teacher_scores", "save_every_seconds"}
"""Settings that may change when a run resumes, or in another process."""


def _has_ended(record: Path) -> bool:
    """Whether a run's record says that it reached its end."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        return "end" in json.loads(record.read_bytes())["starts"][-1]
    return False


@contextmanager
def run_folder(out: Path) -> Iterator[Processes]:
    """Locks a run's folder, and removes what killed runs left in it; yields the run's processes.

    CheckpointError: no run wrote what it holds. TrainingError: another process trains in it.
    """
    existing = [name for name in _REPLACED if (out / name).exists()]
    if existing and not (out / CHECKPOINT).exists() and _has_ended(out / RECORD):
        raise CheckpointError(
            f"{out}: holds the model of a run that has ended, without its {CHECKPOINT}; give another folder"
        )
    if existing and not any((out / name).exists() for name in _RUN_FILES):
        what = "a model" if {CONFIG, MODULE_CONFIG} & {*existing} else existing[0]
        raise CheckpointError(f"{out}: holds {what}, but no run to resume ({FOLDER}/); give another folder")
    processes = Processes.from_group()
    lock = TrainingLock(out / CHECKPOINT, argument="out") if processes.is_first else None
    try:
        if lock is not None:
            discard_unfinished(out)
            for name in (README, CHECKPOINT, RECORD, CURVE, RELIABILITY):
                discard_leftovers(out / name)
        yield processes
    finally:
        if lock is not None:
            lock.release()
            for folder in (out / FOLDER, out):  # of a run that never began
                with suppress(OSError):
                    folder.rmdir()
