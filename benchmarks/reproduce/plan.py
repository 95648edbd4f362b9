"""Which runs a command means: those of a table's rows, and the ones that these begin with, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.reproduce.runs import Run
from benchmarks.reproduce.scales import Scale, run_of, why_not
from benchmarks.reproduce.tables import Row, Table, read_table, table_names
from polyencoder.errors import ConfigError

__all__ = ["Planned", "all_runs", "plan", "runs_of"]


@dataclass(frozen=True)
class Planned:
    """A run, and how many seeds of it are wanted."""

    run: Run
    seeds: int


def runs_of(table: Table, scale: Scale, row: Row) -> list[Run]:
    """The different runs of a row's cells, in the order of the columns.

    Nothing is run for a row that is the paper's alone, a cell in which the paper has no number beside others that it
    has, or a number that cannot be had.
    """
    runs: dict[str, Run] = {}
    for column in table.measured(row):
        if why_not(scale, table.cell(row, column)):
            continue
        run = run_of(scale, table.cell(row, column), where=f"{table.name}, row {row.name}, {column.title}")
        if runs.setdefault(run.name, run) != run:
            raise ConfigError(f"{table.name}, row {row.name}: two runs are called {run.name}; give one a variation")
    return list(runs.values())


def plan(table: Table, scale: Scale, rows: Iterable[Row], *, seeds: int | None) -> list[Planned]:
    """What has to be run for these rows, each run once, behind those that it needs.

    Raises:
        ConfigError: a row does not go with the scale, or a run needs one that is in no table.
    """
    known = all_runs(scale)
    planned: dict[str, Planned] = {}

    def add(run: Run, wanted: int, asked_by: Sequence[str]) -> None:
        if run.name in asked_by:
            raise ConfigError(f"{' needs '.join([*asked_by, run.name])}: none of them can be the first")
        for need in run.needs:
            if need not in known:
                raise ConfigError(f"{run.name} needs {need}, which is a run of no table")
            add(known[need], min(wanted, known[need].seeds) if seeds is None else wanted, [*asked_by, run.name])
        before = planned.get(run.name)
        if before is None or before.seeds < wanted:
            planned[run.name] = Planned(run, wanted)

    for row in rows:
        for run in runs_of(table, scale, row):
            usual = table.seeds.get(scale.name, run.seeds) if run.asked.updates or run.asked.examples else run.seeds
            add(run, seeds or usual, [])
    return list(planned.values())


@cache
def _tables() -> tuple[Table, ...]:
    return tuple(read_table(name) for name in table_names())


def all_runs(scale: Scale) -> Mapping[str, Run]:
    """The runs of all tables at a scale, and those that it writes out.

    Raises:
        ConfigError: two of them have one name, so that each would be taken for the other's result.
    """
    runs = dict(scale.runs)
    for table in _tables():
        for row in table.rows:
            for run in runs_of(table, scale, row):
                if runs.setdefault(run.name, run) != run:
                    raise ConfigError(f"{table.name}, row {row.name}: another table has another run {run.name}")
    return runs
