"""Planned runs, one after the other, until all have a result; other processes may be at the same ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reproduce import checks
from benchmarks.reproduce.execution import OutOfTime, RunsElsewhere, execute
from benchmarks.reproduce.plan import Planned
from benchmarks.reproduce.results import result_path, write_result
from benchmarks.reproduce.runs import Places, Run
from polyencoder.errors import PolyencoderError

__all__ = ["MORE_TO_DO", "run_all"]

MORE_TO_DO = 3
"""The exit code where something is left: out of time, or in another process's hands."""


def run_all(planned: Sequence[Planned], *, scale: str, places: Places, out: Path | None, deadline: float | None) -> int:
    """Run what has no result yet, seed by seed: all runs' first seeds come before any run's second.

    What needs a run that is missing, or has failed, is left out. What another process runs, or needs such a run, waits
    until all else is done, and is left to that process if it is not over by then.

    Args:
        planned: each behind those that it needs.
        scale: its name, for the results.
        places: what stands for {names} in commands.
        out: the folder of results; None to keep none.
        deadline: of `time.monotonic()`, at which the command that is running is ended.

    Returns:
        The exit code: 0, 1 if a run failed, or MORE_TO_DO.
    """
    lacking: dict[str, str] = {}  # runs that cannot be had, and so those that need them
    seeds = range(max((one.seeds for one in planned), default=0))
    left = [(one.run, seed) for seed in seeds for one in planned if seed < one.seeds]
    failed = False
    while left:
        elsewhere: list[tuple[Run, int]] = []
        for run, seed in left:
            if out and result_path(out, scale, run.name, seed).exists():
                continue
            lacks = [*checks.missing(run, places), *(f"{need}, see there" for need in run.needs if need in lacking)]
            if lacks:
                lacking[run.name] = "; ".join(lacks)
                print(f"{run.name}, seed {seed}: missing: {lacking[run.name]}", flush=True)
                continue
            try:
                _all_here(run, seed, elsewhere)
                result = execute(run, scale=scale, seed=seed, places=places, deadline=deadline)
                where = f" -> {write_result(out, result, run)}" if out else ""
            except RunsElsewhere:
                elsewhere.append((run, seed))
            except OutOfTime:
                print(f"{run.name}, seed {seed}: goes on with the same command", flush=True)
                return MORE_TO_DO
            except PolyencoderError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                failed, lacking[run.name] = True, "failed"
            else:
                print(f"{run.name}, seed {seed}: {_short(result.metrics)}{where}", flush=True)
        if elsewhere == left:
            names = ", ".join(f"{run.name}, seed {seed}" for run, seed in left)
            print(f"another process runs, or waits for: {names}", flush=True)
            return int(failed) or MORE_TO_DO
        left = elsewhere
    return int(failed)


def _all_here(run: Run, seed: int, elsewhere: Sequence[tuple[Run, int]]) -> None:
    """RunsElsewhere if another process has what a seed needs."""
    needed = {(need, seed if each else 0) for need, each in run.needs.items()}
    if any((other.name, of) in needed for other, of in elsewhere):
        raise RunsElsewhere


def _short(metrics: Mapping[str, float]) -> str:
    shown = {name: value for name, value in metrics.items() if name.rpartition("/")[2].startswith(("R", "mrr"))}
    return "  ".join(f"{name} {value:.4g}" for name, value in (shown or metrics).items())
