"""The metadata of a model card, in the hub's format: base model, data sets, and results as a model-index."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from polyencoder.hub.resolve import explain_invalid_hub_id

SPLITS = {"valid": "validation", "test": "test"}
"""The hub's names of the parts of a data set."""


def format_front_matter(
    *,
    name: str,
    library: str,
    task: str,
    tags: Iterable[str] = (),
    base_model: str | None = None,
    datasets: Iterable[str] = (),
    results: Iterable[EvalResult] = (),
) -> str:
    """The YAML block at the beginning of a card, between two lines of `---`.

    name: in the model-index. library: loads the model. task: the hub's name of the task, such as "text-ranking".
    base_model, datasets: hub ids.
    """
    eval_results = [*results]
    data = ModelCardData(
        library_name=library,
        pipeline_tag=task,
        tags=[*tags],
        base_model=base_model,
        datasets=[*datasets] or None,
        model_name=name if eval_results else None,  # read only in a model-index
        eval_results=eval_results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def build_results(
    measures: Mapping[str, float], *, task: str, task_name: str, dataset: str, part: str = "valid"
) -> list[EvalResult]:
    """The results of an evaluation, `{"R20@1": 0.83}`; measures that are no finite number are left out.

    task: the hub's name of the task; `task_name`: for people. dataset: a hub id or file name; part: "valid" or "test".
    """
    return [
        EvalResult(
            task_type=task,
            task_name=task_name,
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split=SPLITS[part],
            metric_type=name.lower().replace(" ", "_"),
            metric_name=name,
            metric_value=float(f"{value:.4g}"),
        )
        for name, value in measures.items()
        if math.isfinite(value)
    ]


def parse_hub_id(name: Any) -> str | None:
    """The name if it can be a repository on the hub; None for a folder, a file, or nothing."""
    return name if isinstance(name, str) and name and not explain_invalid_hub_id(name) else None


def parse_hub_dataset(name: Any) -> str | None:
    """The repository of data of the hub, `hf:OWNER/NAME:SPLIT` or `hf:OWNER/NAME@CONFIG:SPLIT`; None for files."""
    return parse_hub_id(str(name).split(":")[1].partition("@")[0]) if str(name).startswith("hf:") else None


def cut_folder(value: Any) -> Any:
    """Cuts paths outside the working folder, and addresses, to their last parts: cards are published.

    Takes a text, also of several paths with commas between them, or a list of texts. Names of the hub and paths below
    the working folder remain.
    """
    if isinstance(value, (list, tuple)) and all(isinstance(path, str) for path in value):
        value = ",".join(value)
    if not isinstance(value, str):
        return value
    return ",".join(_cut_folder(path) for path in value.split(","))


def _cut_folder(path: str) -> str:
    is_private = "://" in path or path.startswith("~") or ".." in re.split(r"[/\\]", path)
    if is_private or Path(path).is_absolute() or PureWindowsPath(path).is_absolute():
        return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return path


def rename_card(card: str, *, name: str) -> str:
    """A card whose model-index has another name; unchanged without a model-index."""
    try:
        parsed = ModelCard(card)
    except (yaml.YAMLError, ValueError, TypeError):  # people wrote it
        return card
    if not isinstance(parsed.data, ModelCardData) or not parsed.data.eval_results:
        return card
    parsed.data.model_name = name
    return str(parsed)
