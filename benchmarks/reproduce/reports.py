"""Reads a step's numbers from the report that its command wrote or printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyencoder.errors import InputError


def read_numbers(read: Mapping[str, Any], *, printed: str, where: str) -> dict[str, float]:
    """Read the numbers that a step's `read` asks for, by name.

    - `{report: FILE}`: from the report that ParlAI's `--report-filename` writes;
    - `{json: true}`: from the printed JSON object; nested names are joined by a dot, `accuracy.mean`;
    - `{rows: [system, candidates]}`: from the rows of a benchmark's JSON, `bi-encoder/1000/mean_ms`;
    - `{pattern: REGEX}`: the named groups of its last match in the output.

    Raises:
        InputError: the report or the output does not have them.
    """
    if "report" in read:
        report = _parse_json(Path(read["report"]).read_text(encoding="utf-8"), where)["report"]
        return dict(_flatten(report))
    if "pattern" in read:
        matches = list(re.finditer(read["pattern"], printed))
        if not matches:
            raise InputError(f"{where}: its output has nothing like {read['pattern']}")
        return {name: float(text) for name, text in matches[-1].groupdict().items()}
    if "rows" in read:
        rows = _parse_json(_find_object(printed), where)["rows"]
        keys = read["rows"]
        return {
            "/".join([*(str(row[key]) for key in keys), name]): number
            for row in rows
            if all(key in row for key in keys)
            for name, number in _flatten({k: v for k, v in row.items() if k not in keys})
        }
    if "json" in read:
        return dict(_flatten(_parse_json(_find_object(printed), where)))
    return {}


def read_training_amount(model: Path, *, batch: int) -> dict[str, int]:
    """The updates and examples of ParlAI's training loop, from the model's `.trainstats`.

    Raises:
        InputError: the file is missing or incomplete.
    """
    path = model.with_name(f"{model.name}.trainstats")
    try:
        updates = int(json.loads(path.read_text(encoding="utf-8"))["train_steps"])
        return {"updates": updates, "examples": updates * batch}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: does not say how many updates were made ({error})") from None


def _find_object(printed: str) -> str:
    start = printed.find("{") if printed.lstrip().startswith("{") else printed.rfind("\n{") + 1
    return printed[start:] if start >= 0 else ""


def _parse_json(text: str, where: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: its report is no JSON object ({error})") from None
    return value


def _flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{before}{name}", float(value)
