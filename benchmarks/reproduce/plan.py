"""Plans the runs of a command: a table's rows, after the runs that they depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from benchmarks.reproduce.cells import explain_unavailable, get_cell, get_run
from benchmarks.reproduce.runs import ReproductionRun
from benchmarks.reproduce.scales import Scale
from benchmarks.reproduce.tables import Row, Table, list_table_names, read_table
from polyencoder.errors import ConfigError


class Planned(NamedTuple):
    """A run and its number of seeds."""

    run: ReproductionRun
    seeds: int


def plan_runs(table: Table, scale: Scale, row: Row) -> list[Planned]:
    """The distinct runs of a row's cells, in the order of the columns, with their numbers of seeds.

    No runs for rows that have only the paper's numbers or belong to another scale, for cells without a number of the
    paper in a row with some, and for cells that cannot be measured.
    """
    runs: dict[str, Planned] = {}
    for column in table.list_measured(row) if row.is_at(scale.name) else ():
        cell = get_cell(scale, table, row, column)
        if explain_unavailable(scale, cell):
            continue
        run = get_run(scale, cell, where=f"{table.name}, row {row.name}, {column.title}")
        seeds = {**table.seeds, **cell.seeds}.get(scale.name, run.seeds) if run.trains else run.seeds
        if runs.setdefault(run.name, Planned(run, seeds)).run != run:
            raise ConfigError(f"{table.name}, row {row.name}: two runs are called {run.name}; give one a variation")
    return list(runs.values())


def plan(table: Table, scale: Scale, rows: Iterable[Row], *, seeds: int | None) -> list[Planned]:
    """The runs of these rows, each once and after its dependencies; `seeds` of each training, if not the table's.

    Raises:
        ConfigError: a row does not fit the scale, or a run depends on one that is in no table.
    """
    planned: dict[str, Planned] = {}

    def add(run: ReproductionRun, count: int, dependents: Sequence[str]) -> None:
        needs = {} if run.missing else run.needs  # a run that cannot be executed has no dependencies
        runs = collect_runs(scale) if needs else {}
        if run.name in dependents:
            raise ConfigError(f"{' needs '.join([*dependents, run.name])}: the dependencies form a circle")
        for need, each in needs.items():
            if need not in runs:
                raise ConfigError(f"{run.name} needs {need}, which is a run of no table")
            add(runs[need], count if each and runs[need].trains else 1, [*dependents, run.name])
        before = planned.get(run.name)
        if before is None or before.seeds < count:
            planned[run.name] = Planned(run, count)

    for row in rows:
        for item in plan_runs(table, scale, row):
            add(item.run, seeds if seeds and item.run.trains else item.seeds, [])
    return list(planned.values())


@cache
def collect_runs(scale: Scale) -> Mapping[str, ReproductionRun]:
    """The runs of all tables at a scale, and those written out in its file.

    Raises:
        ConfigError: two different runs have the same name.
    """
    runs = dict(scale.runs)
    for table in map(read_table, list_table_names()):
        for row in table.rows:
            for item in plan_runs(table, scale, row):
                if runs.setdefault(item.run.name, item.run) != item.run:
                    raise ConfigError(f"{table.name}, row {row.name}: another table has another run {item.run.name}")
    return runs
