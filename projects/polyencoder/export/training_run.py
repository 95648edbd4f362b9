"""Facts of a model's training: by its run, or by ParlAI's files beside a model file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyencoder.config import PROMPTS
from polyencoder.evaluation.names import select_main_measures
from polyencoder.export.metadata import cut_folder, parse_hub_dataset, parse_hub_id
from polyencoder.modeling.families import FAMILIES

# The options that matter to a reader, for a file that does not say which options were given
_FLAGS = (
    *("task", "mutators", "backbone", "init_model", "candidates", "eval_candidates", "batchsize", "num_epochs"),
    *("max_train_steps", "optimizer", "learningrate", "lr_scheduler", "warmup_updates", "type_optimization", "dropout"),
    *("text_truncate", "label_truncate", "history_size", "bf16", "fp16"),
    *("label_smoothing", "final_learning_rate", "embedding_clip", "vocabulary"),
    *(name for family in FAMILIES.values() for name in family.settings),
)
_NOT_OF_CONVERT = ("history_size", "fp16", "backbone", "type_optimization")  # flags that `-m convert` does not have
_LENGTH = ("train_steps", "total_exs")  # in ParlAI's reports
_HIDDEN = {"model_file", "dict_file", "datapath", "override"}


@dataclass(frozen=True)
class TrainingRun:
    """The known facts of a model's training."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    """The options that shaped it, `learningrate` -> 5e-05."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """R20@1 -> 0.83, for each part of the data, `valid` or `test`, and for each baseline."""

    command: str = "parlai train_model"
    """The command whose flags the options are."""
    updates: int | None = None
    """Updates of the best model, like `examples`."""
    examples: int | None = None
    pairs: int | None = None
    """The number of training pairs."""
    seed: int | None = None
    base_model: str | None = None
    """The hub id of the encoder or ranker that training started from, if any."""

    @property
    def task(self) -> str | None:
        return self.flags.get("task")

    def get_data_name(self, part: str) -> str | None:
        """The name of the data of a part: a task of ParlAI, a data set of the hub, or a file."""
        key = "valid" if part == "valid" else "train"
        files = self.flags.get(key) or self.flags.get("train")
        name = self.flags.get("evaltask") or self.task or files
        if name is None:
            return None
        return parse_hub_dataset(name) or ", ".join(Path(path).name for path in str(name).split(","))


def name_measures(
    *, trained: Mapping[str, float], before: Mapping[str, float], stands_in: bool, tfidf: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """The main measures of a run's model and of its baselines, by the names that the card has; empty reports left out.

    `stands_in`: the measures before training are a bi-encoder's.
    """
    reports = {
        "valid": trained,
        "before training" + (", a bi-encoder of the backbone" if stands_in else ""): before,
        "TF-IDF": tfidf,
    }
    return {name: select_main_measures(report) for name, report in reports.items() if report}


def read_run(model_file: str | os.PathLike[str]) -> TrainingRun:
    """Reads ParlAI's files beside a model file; missing or damaged ones are skipped."""
    opt = _read(f"{os.fspath(model_file)}.opt")
    absent = _NOT_OF_CONVERT if opt.get("model") == "convert" else ()
    options = opt.get("override") or {name: opt.get(name) for name in _FLAGS if name not in absent}
    base_model = parse_hub_id(opt.get("base_model"))  # the agent's note, as a relative path may look like a hub id
    flags = {name: cut_folders(name, value) for name, value in sorted(options.items()) if name not in _HIDDEN}
    flags = {name: value for name, value in flags.items() if value is not None and value != "" and value != -1}
    stats = _read(f"{os.fspath(model_file)}.trainstats")
    metrics = {}
    for part in ("valid", "test"):
        report = _read_last_report(f"{os.fspath(model_file)}.{part}") or stats.get(f"final_{part}_report")
        if part == "valid" and not report:
            report = _find_best(stats, metric=opt.get("validation_metric"))
        if isinstance(report, dict) and (chosen := select_main_measures(report)):
            metrics[part] = chosen | ({"examples": report["exs"]} if "exs" in report else {})
    best = _find_best(stats, metric=opt.get("validation_metric")) or stats
    updates, examples = (value if isinstance(value := best.get(name), int) else None for name in _LENGTH)
    length: dict[str, Any] = {"updates": updates, "examples": examples, "seed": opt.get("seed")}
    return TrainingRun(flags, metrics, base_model=base_model, **length)


def find_trained_dims(run: TrainingRun, card: str | None) -> set[int]:
    """The numbers of first dimensions that a training with `matryoshka` trained, too, as its options or card say."""
    row = re.search(r"^\| `--matryoshka` \| `(.*)` \|$", card or "", re.M)
    return {int(number) for number in re.findall(r"\d+", f"{run.flags.get('matryoshka')} {row and row[1]}")}


def cut_folders(name: str, value: Any) -> Any:
    """A flag's value without folders; a prompt is text, also where it looks like a path."""
    return value if name in PROMPTS else cut_folder(value)


def _read(path: str) -> dict[str, Any]:
    try:
        values = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _read_last_report(path: str) -> dict[str, Any] | None:
    """The last evaluation in a `.valid` or `.test` file: a line of JSON, where ParlAI did not write a table."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        report: dict[str, Any] | None = json.loads(next((line for line in lines[::-1] if line[:1] == "{"), "null"))
    except (OSError, ValueError):
        return None
    return report


def _find_best(stats: Mapping[str, Any], *, metric: Any) -> dict[str, Any] | None:
    reports = stats.get("valid_reports") or []
    best = stats.get("best_valid")
    return next((report for report in reports if best == report.get(metric)), None)
