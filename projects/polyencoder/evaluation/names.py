"""Metric names in reports (`R20@1`, `hits@1`, `mrr`), and the main metrics of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from polyencoder.errors import ConfigError

NDCG = "nDCG@10"
"""The measure of examples with several right candidates; named as in ir_measures."""

HITS_AT = (1, 5, 10)
"""The k of R{N}@k and hits@k by default."""

_RECALL = re.compile(r"R(\d+)@(\d+)")
_HITS = re.compile(r"hits@(\d+)")
_MRR = re.compile(r"mrr(@\d+)?")


def format_recall_name(k: int, n: int) -> str:
    """Recall at k among n candidates: `R20@1`, as in the literature of response selection (R_20@1).

    The poly-encoder paper writes R@1/20. ParlAI takes the part before a slash for the name of a task.
    """
    return f"R{n}@{k}"


def select_main_measures(
    report: Mapping[str, Any], *, hits_at: Sequence[int] = HITS_AT, alike: bool = True
) -> dict[str, float]:
    """The metrics of a report to show, nDCG if there is any, recall, MRR and loss, under their usual names.

    Where examples have different numbers of candidates, each R{N}@k is that of a part of them: then hits@k, of all, for
    each k of `hits_at`. The names tell, unless every k is above 1: then False for `alike` does.
    """
    numbers = {name: value for name, value in report.items() if isinstance(value, int | float)}
    recalls = sorted((int(m[2]), int(m[1]), name) for name in numbers if (m := _RECALL.fullmatch(name)))
    several = not alike or len({n for _, n, _ in recalls}) != 1
    names = [f"hits@{k}" for k in hits_at] if several else [name for _, _, name in recalls]
    names += [name for name in numbers if _MRR.fullmatch(name)] + ["loss"]
    return {name.replace("mrr", "MRR"): numbers[name] for name in [NDCG, *names] if name in numbers}


def format_name(name: str, report: Mapping[str, Any]) -> str:
    """A metric's name in `select_main_measures`: `R20@1` for `hits@1` where all examples have 20 candidates."""
    match, measures = _HITS.fullmatch(name), select_main_measures(report)
    recall = format_recall_name(int(match[1]), parse_num_candidates(measures) or 0) if match else name
    return recall if recall in measures else name


def parse_num_candidates(measures: Mapping[str, Any]) -> int | None:
    """The number of candidates of each example, from the names of `select_main_measures`; None if unknown."""
    return next((int(match[1]) for name in measures if (match := _RECALL.fullmatch(name))), None)


def format_line(measures: Mapping[str, float], *, form: str = ".3f") -> str:
    """Measures with their names: `R20@1 0.664  MRR 0.783  loss 0.920`."""
    return "  ".join(f"{name} {value:{form}}" for name, value in measures.items())


def format_summary(measures: Mapping[str, float]) -> str:
    """The most important of `select_main_measures` in one line: `R20@1 0.664  MRR 0.783  loss 0.92`."""
    chosen = [*list(measures)[:1], *(name for name in measures if name == "loss" or name.startswith("MRR"))]
    return format_line({name: measures[name] for name in chosen}, form=".3g")


def parse_hits_at(value: str) -> list[int]:
    """Parses the k of recalls: `"1,5,10"` -> [1, 5, 10]. Raises ConfigError for anything else."""
    try:
        numbers = sorted({int(part) for part in value.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise ConfigError(
            f"hits_at is {value!r}; give whole numbers from 1 up, separated by commas, as in 1,5,10", argument="hits_at"
        )
    return numbers
