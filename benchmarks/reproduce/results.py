"""Results of runs as JSON files, `SCALE/RUN/seed-N.json`, stored in the repository."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import describe_machine
from benchmarks.reproduce.runs import ReproductionRun
from benchmarks.reproduce.yaml_schema import parse_fields
from polyencoder.errors import ConfigError, InputError
from polyencoder.packages import PACKAGES, get_version
from polyencoder.storage.files import write_text

RESULTS = Path(__file__).parents[1] / "results"
FORMAT = 1
_MACHINE = ("cpu", "cores", "threads", "load", "gpu")
_PACKAGES = (*PACKAGES, "sentence-transformers")


@dataclass(frozen=True)
class Result:
    """One seed of a run."""

    scale: str
    run: str
    seed: int
    date: str
    """The day it finished, in UTC: 2026-11-22."""
    commands: list[str]
    """With placeholders such as {data}, since folders differ between machines."""
    metrics: Mapping[str, float]
    """By step: `valid/R20@1`, `train/hours`."""
    updates: int
    examples: int
    seconds: Mapping[str, float]
    """The seconds of each step, summed over its pieces."""
    pieces: int
    """How many times the run was started or resumed."""
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    format: int = FORMAT
    places: Mapping[str, str] = field(default_factory=dict)
    """The encoders that it started from, as named by the scale or `--set`; of an absolute path its last part."""


def get_result_path(folder: Path, scale: str, run: str, seed: int) -> Path:
    """The path of a result below `folder`."""
    return folder / scale / run / f"seed-{seed}.json"


def write_result(folder: Path, result: Result, run: ReproductionRun) -> Path:
    """Write a result; ConfigError if it was trained on less than the run asks for."""
    _check_enough(result, run, where=f"{run.name}, seed {result.seed}")
    path = get_result_path(folder, result.scale, result.run, result.seed)
    write_text(path, json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    return path


def read_results(folder: Path, scale: str, run: ReproductionRun) -> list[Result]:
    """Read the results of a run, ordered by seed.

    Raises:
        InputError: a file is not a result of this run, or of an unknown format.
        ConfigError: one was trained on less than the run asks for.
    """
    results = []
    for path in get_result_path(folder, scale, run.name, 0).parent.glob("seed-*.json"):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise InputError(f"{path}: is not a result of format {FORMAT}")
        result = parse_fields(Result, values, where=str(path))
        if (result.scale, result.run, f"seed-{result.seed}") != (scale, run.name, path.stem):
            raise InputError(
                f"{path}: is of {result.scale}, {result.run}, seed {result.seed}; it is in the wrong place"
            )
        _check_enough(result, run, where=str(path))
        if result.commands != run.commands:
            raise InputError(f"{path}: was made with other commands than its row has now; rerun it, or restore the row")
        results.append(result)
    return sorted(results, key=lambda result: result.seed)


def describe_environment() -> tuple[dict[str, Any], dict[str, str]]:
    """The machine and the package versions, which numbers also depend on."""
    packages = {package: number for package in _PACKAGES if (number := get_version(package))}
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    hardware = {
        name: value for name, value in {**describe_machine(), **gpu}.items() if name in _MACHINE and value is not None
    }
    return hardware, {"python": platform.python_version(), **packages}


def _check_enough(result: Result, run: ReproductionRun, *, where: str) -> None:
    for what in ("updates", "examples"):
        actual, required = getattr(result, what), getattr(run, what)
        if actual < required:
            raise ConfigError(
                f"{where}: was trained on {actual:,} {what} where its row asks for {required:,}; it is not a result"
            )
