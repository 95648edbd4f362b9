"""`X.run.json`, beside the model: with what it was made, so that it can be made again."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from parlai.core.opt import Opt

from polyencoder.files import write_text

PACKAGES = ("parlai-polyencoder", "parlai", "torch", "transformers", "tokenizers", "numpy")
LEFT_OUT = ("override", "load_from_checkpoint")  # what ParlAI's scripts tell each other


def write_record(path: str, opt: Opt, *, updates: int) -> None:
    """Write the options and, for this start of the run and those before it, the command and versions.

    Args:
        path: of the record. If it is there, and of a run that is now resumed, its starts are kept.
        opt: the agent's options.
        updates: of the model, before this start; 0 for a new run.
    """
    start = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "updates": updates,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": {"platform": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
        | {"gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]},
    }
    earlier = _starts(path) if updates else []
    options = {name: value for name, value in opt.items() if name not in LEFT_OUT}
    record = {"format": 1, "seed": opt.get("seed"), "starts": [*earlier, start], "options": options}
    write_text(path, json.dumps(record, indent=2, default=str) + "\n")


def _starts(path: str) -> list[dict[str, Any]]:
    try:
        return list(json.loads(Path(path).read_text(encoding="utf-8"))["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
