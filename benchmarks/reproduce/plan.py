"""Which runs a command means: those of a table's rows, and the ones that these begin with, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.reproduce.cells import cell_of, run_of, why_not
from benchmarks.reproduce.runs import Run
from benchmarks.reproduce.scales import Scale
from benchmarks.reproduce.tables import Row, Table, read_table, table_names
from polyencoder.errors import ConfigError

__all__ = ["Planned", "all_runs", "plan", "runs_of"]


@dataclass(frozen=True)
class Planned:
    """A run, and how many seeds of it are wanted."""

    run: Run
    seeds: int


def runs_of(table: Table, scale: Scale, row: Row) -> list[Planned]:
    """The different runs of a row's cells, in the order of the columns, with the seeds that the table has of them.

    Nothing is run for a row that is the paper's alone or another scale's, for a cell in which the paper has no number
    where it has others of the row, or for a number that cannot be had.
    """
    runs: dict[str, Planned] = {}
    for column in table.measured(row) if row.at(scale.name) else ():
        cell = cell_of(scale, table, row, column)
        if why_not(scale, cell):
            continue
        run = run_of(scale, cell, where=f"{table.name}, row {row.name}, {column.title}")
        seeds = {**table.seeds, **cell.seeds}.get(scale.name, run.seeds) if run.learns else run.seeds
        if runs.setdefault(run.name, Planned(run, seeds)).run != run:
            raise ConfigError(f"{table.name}, row {row.name}: two runs are called {run.name}; give one a variation")
    return list(runs.values())


def plan(table: Table, scale: Scale, rows: Iterable[Row], *, seeds: int | None) -> list[Planned]:
    """What has to be run for these rows, each run once, behind those that it needs.

    Args:
        table: of the rows.
        scale: at which they are run.
        rows: some of the table's.
        seeds: how many of whatever learns; None for as many as table and scale say.

    Raises:
        ConfigError: a row does not go with the scale, or a run needs one that is in no table.
    """
    known: Mapping[str, Run] = {}
    planned: dict[str, Planned] = {}

    def add(run: Run, wanted: int, asked_by: Sequence[str]) -> None:
        nonlocal known
        needs = {} if run.missing else run.needs  # what cannot be had needs nothing
        if needs:
            known = known or all_runs(scale)
        if run.name in asked_by:
            raise ConfigError(f"{' needs '.join([*asked_by, run.name])}: none of them can be the first")
        for need, each in needs.items():
            if need not in known:
                raise ConfigError(f"{run.name} needs {need}, which is a run of no table")
            add(known[need], wanted if each and known[need].learns else 1, [*asked_by, run.name])
        before = planned.get(run.name)
        if before is None or before.seeds < wanted:
            planned[run.name] = Planned(run, wanted)

    for row in rows:
        for one in runs_of(table, scale, row):
            add(one.run, seeds if seeds and one.run.learns else one.seeds, [])
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
            for one in runs_of(table, scale, row):
                if runs.setdefault(one.run.name, one.run) != one.run:
                    raise ConfigError(f"{table.name}, row {row.name}: another table has another run {one.run.name}")
    return runs
