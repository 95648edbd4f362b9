"""Executes planned runs one after the other until all have a result; several processes can share them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reproduce import checks
from benchmarks.reproduce.execution import OutOfTime, RunsElsewhere, execute, is_finished
from benchmarks.reproduce.plan import Planned
from benchmarks.reproduce.results import Result, get_result_path, write_result
from benchmarks.reproduce.runs import Bindings, ReproductionRun
from polyencoder.errors import PolyencoderError

MORE_TO_DO = 3
"""Exit code if work is left: out of time, or another process is running it."""


def run_all(
    planned: Sequence[Planned], *, scale: str, bindings: Bindings, out: Path | None, deadline: float | None
) -> int:
    """Execute the runs without a result, seed by seed: first seeds of all runs come before second ones.

    A run whose result exists but whose models do not is executed again if another run depends on them; its result is
    kept. Runs that depend on a missing or failed run are skipped. Runs that another process is executing, and those
    that depend on them, come last, and are left to that process if it has not finished by then.

    `planned` has each run after its dependencies. Without `out` no results are kept. At the deadline, a time of
    `time.monotonic()`, the running command is terminated.

    Returns:
        The exit code: 0, MORE_TO_DO, or 1 if a run failed, files are missing, or no run can be executed.
    """
    lacking: set[str] = set()  # runs that cannot be executed, and those that depend on them
    seeds = range(max((count for _, count in planned), default=0))
    left = [(run, seed) for seed in seeds for run, count in planned if seed < count]
    needed: set[tuple[str, int]] = set()  # by unfinished runs

    def is_over(run: ReproductionRun, seed: int) -> bool:
        """Whether a seed's result exists and, if another run needs them, its models too."""
        if out is None or not get_result_path(out, scale, run.name, seed).exists():
            return False
        return (run.name, seed) not in needed or is_finished(run, seed, bindings=bindings)

    for run, seed in reversed(left):
        if not (run.missing or is_over(run, seed)):
            needed |= _needs(run, seed)
    for run, seed in left:
        if out is not None and is_over(run, seed):
            path = get_result_path(out, scale, run.name, seed)
            print(f"{run.name}, seed {seed}: its result is in {path}; to rerun it, give another --out and --runs")
    failed = False
    while left:
        elsewhere: list[tuple[ReproductionRun, int]] = []
        for run, seed in left:
            if is_over(run, seed):
                continue
            missing = checks.find_missing(run, bindings)
            if lacks := [*missing, *(f"{need}, see there" for need in run.needs if need in lacking)]:
                if run.name not in lacking:
                    print(f"{run.name}, seed {seed}: missing: {'; '.join(lacks)}", flush=True)
                lacking.add(run.name)
                failed |= bool(missing) and not run.missing
                continue
            try:
                if any((other.name, of) in _needs(run, seed) for other, of in elsewhere):
                    raise RunsElsewhere
                result = execute(run, scale=scale, seed=seed, bindings=bindings, deadline=deadline)
                where = f" -> {_keep(result, run, out)}" if out else ""
            except RunsElsewhere:
                elsewhere.append((run, seed))
            except OutOfTime:
                print(f"{run.name}, seed {seed}: stopped; the same command resumes it", flush=True)
                return MORE_TO_DO
            except PolyencoderError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                failed = True
                lacking.add(run.name)
            else:
                print(f"{run.name}, seed {seed}: {_format_metrics(result.metrics)}{where}", flush=True)
        if elsewhere == left:
            names = ", ".join(f"{run.name}, seed {seed}" for run, seed in left)
            print(f"another process is running, or waits for: {names}", flush=True)
            return int(failed) or MORE_TO_DO
        left = elsewhere
    return int(failed or all(run.name in lacking for run, _ in planned))


def _keep(result: Result, run: ReproductionRun, out: Path) -> Path:
    """Write a result unless it exists; return its path."""
    path = get_result_path(out, result.scale, run.name, result.seed)
    return path if path.exists() else write_result(out, result, run)


def _needs(run: ReproductionRun, seed: int) -> set[tuple[str, int]]:
    return {(need, seed if each else 0) for need, each in run.needs.items()}


def _format_metrics(metrics: Mapping[str, float]) -> str:
    main = {name: value for name, value in metrics.items() if name.rpartition("/")[2].startswith(("R", "mrr"))}
    return "  ".join(f"{name} {value:.4g}" for name, value in (main or metrics).items())
