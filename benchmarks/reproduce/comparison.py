"""Compares the results of a user's runs with the paper's numbers and docs/results.md's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.reproduce.page import Head, format_grid, read_measured
from benchmarks.reproduce.results import RESULTS
from benchmarks.reproduce.scales import Scale
from benchmarks.reproduce.tables import Row, Table


def iter_compared(table: Table, scale: Scale, rows: Sequence[Row], results: Path) -> Iterator[str]:
    """Yield the lines of a Markdown table of these rows: the columns with a number in `results`; no lines without any.

    Raises:
        ConfigError, InputError: a result is invalid; the message names the file.
    """
    here = read_measured(table, scale, results)
    published = read_measured(table, scale, RESULTS)
    names, heads = [], list[Head]()
    for number, column in enumerate(table.columns):
        cells = [(row.name, column.title) for row in rows]
        if not any(cell in here.values for cell in cells):
            continue
        if any(row.paper[number] for row in rows):
            names.append(f"{column.title}, paper")
            heads.append((column, None))
        if results.resolve() != RESULTS.resolve() and any(cell in published.values for cell in cells):
            names.append(f"{column.title}, docs/results.md")
            heads.append((column, published))
        names.append(f"{column.title}, {results}")
        heads.append((column, here))
    if heads:
        yield from ("", f"{table.name}: {table.title}", "")
        yield from format_grid(
            table, [row for row in rows if any(row.name == name for name, _ in here.values)], heads, names
        )
