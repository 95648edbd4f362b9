"""Planned runs, one after the other, until all have a result; other processes may be at the same ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reproduce import checks
from benchmarks.reproduce.execution import OutOfTime, RunsElsewhere, execute, finished
from benchmarks.reproduce.plan import Planned
from benchmarks.reproduce.results import Result, result_path, write_result
from benchmarks.reproduce.runs import Places, Run
from polyencoder.errors import PolyencoderError

__all__ = ["MORE_TO_DO", "run_all"]

MORE_TO_DO = 3
"""The exit code where something is left: out of time, or in another process's hands."""


def run_all(planned: Sequence[Planned], *, scale: str, places: Places, out: Path | None, deadline: float | None) -> int:
    """Run what has no result yet, seed by seed: all runs' first seeds come before any run's second.

    A run whose result is kept, but not its models, is run again where another one needs them; its result remains. What
    needs a run that is missing, or has failed, is left out. What another process runs, or needs such a run, waits until
    all else is done, and is left to that process if it is not over by then.

    Args:
        planned: each behind those that it needs.
        scale: its name, for the results.
        places: what stands for {names} in commands.
        out: the folder of results; None to keep none.
        deadline: of `time.monotonic()`, at which the command that is running is ended.

    Returns:
        The exit code: MORE_TO_DO, or 0; 1 if a run failed, or files are missing, or none of the runs can be had.
    """
    lacking: set[str] = set()  # runs that cannot be had, and so those that need them
    seeds = range(max((one.seeds for one in planned), default=0))
    left = [(one.run, seed) for seed in seeds for one in planned if seed < one.seeds]
    state = _State(left, scale=scale, places=places, out=out)
    for run, seed in left:
        if state.over(run, seed):
            print(f"{run.name}, seed {seed}: its result is in {state.result(run, seed)}; another --out runs it again")
    failed = False
    while left:
        elsewhere: list[tuple[Run, int]] = []
        for run, seed in left:
            if state.over(run, seed):
                continue
            missing = checks.missing(run, places)
            if lacks := [*missing, *(f"{need}, see there" for need in run.needs if need in lacking)]:
                if run.name not in lacking:
                    print(f"{run.name}, seed {seed}: missing: {'; '.join(lacks)}", flush=True)
                lacking.add(run.name)
                failed |= bool(missing) and not run.missing
                continue
            try:
                _all_here(run, seed, elsewhere)
                result = execute(run, scale=scale, seed=seed, places=places, deadline=deadline)
                where = f" -> {state.keep(result, run)}" if out else ""
            except RunsElsewhere:
                elsewhere.append((run, seed))
            except OutOfTime:
                print(f"{run.name}, seed {seed}: goes on with the same command", flush=True)
                return MORE_TO_DO
            except PolyencoderError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                failed = True
                lacking.add(run.name)
            else:
                print(f"{run.name}, seed {seed}: {_short(result.metrics)}{where}", flush=True)
        if elsewhere == left:
            names = ", ".join(f"{run.name}, seed {seed}" for run, seed in left)
            print(f"another process runs, or waits for: {names}", flush=True)
            return int(failed) or MORE_TO_DO
        left = elsewhere
    return int(failed or all(one.run.name in lacking for one in planned))


class _State:
    """What of the planned runs is over, also by other processes.

    Args:
        left: the runs and seeds, each behind those that it needs.
        scale: its name.
        places: the models' folders among them.
        out: the folder of results; None where none are kept, and so nothing is ever over.
    """

    def __init__(self, left: Sequence[tuple[Run, int]], *, scale: str, places: Places, out: Path | None) -> None:
        self._scale, self._places, self._out = scale, places, out
        self._needed: set[tuple[str, int]] = set()  # by what is not over
        for run, seed in reversed(left):
            if not (run.missing or self.over(run, seed)):
                self._needed |= _needs(run, seed)

    def over(self, run: Run, seed: int) -> bool:
        """Whether a seed's result is kept and, where it is needed, its models too."""
        path = self.result(run, seed)
        if path is None or not path.exists():
            return False
        return (run.name, seed) not in self._needed or finished(run, seed, places=self._places)

    def result(self, run: Run, seed: int) -> Path | None:
        """Where the result of a seed is, or will be."""
        return self._out and result_path(self._out, self._scale, run.name, seed)

    def keep(self, result: Result, run: Run) -> Path:
        """Write a result, but for one that is there already; gives the path."""
        assert self._out is not None
        path = result_path(self._out, self._scale, run.name, result.seed)
        return path if path.exists() else write_result(self._out, result, run)


def _needs(run: Run, seed: int) -> set[tuple[str, int]]:
    return {(need, seed if each else 0) for need, each in run.needs.items()}


def _all_here(run: Run, seed: int, elsewhere: Sequence[tuple[Run, int]]) -> None:
    """RunsElsewhere if another process has what a seed needs."""
    if any((other.name, of) in _needs(run, seed) for other, of in elsewhere):
        raise RunsElsewhere


def _short(metrics: Mapping[str, float]) -> str:
    shown = {name: value for name, value in metrics.items() if name.rpartition("/")[2].startswith(("R", "mrr"))}
    return "  ".join(f"{name} {value:.4g}" for name, value in (shown or metrics).items())
