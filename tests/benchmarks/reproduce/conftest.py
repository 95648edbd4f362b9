"""A folder of results as runs leave it."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.reproduce.cells import get_cell, get_run
from benchmarks.reproduce.results import Result, write_result
from benchmarks.reproduce.scales import read_scale
from benchmarks.reproduce.tables import read_table


@pytest.fixture
def keep(tmp_path):
    """(scale, table, row, numbers) -> results with these numbers, of a seed each, are in the folder that is given."""

    def write_results(scale: str, table: str, row: str, numbers: list[float], **changes):
        at, results_table = read_scale(scale), read_table(table)
        cell = get_cell(at, results_table, results_table.get_row(row), results_table.columns[0])
        run = get_run(at, cell, where="here")
        for seed, number in enumerate(numbers):
            of_run = {"scale": scale, "run": run.name, "commands": run.commands, "examples": run.examples}
            of_run |= {"updates": max(run.updates, 10**6), "machine": {"cpu": "a processor", "threads": 1}}
            of_run |= {"seconds": {"train": 5400.0}, "pieces": 1, "versions": {}}
            result = Result(**of_run, seed=seed, date=f"2026-11-2{seed}", metrics={cell.metric: number})
            write_result(tmp_path, dataclasses.replace(result, **changes), run)
        return tmp_path

    return write_results
