"""A table of a paper: what its rows and columns are, and what the paper found. `tables/NAME.yaml` is one.

A cell is a row and a column. What it is a run of follows from the fields of both: a ranker's `task`, `start` (which
weights it begins with) and `model`, with a `variation` and its `flags` where something else differs; or a `run` by
name. `metric` says which of the run's numbers stands there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reproduce.documents import listed, made, read_document, suggested
from benchmarks.reproduce.values import Value, read_value
from polyencoder.errors import ConfigError

__all__ = ["TABLES", "Cell", "Column", "Picture", "Row", "Table", "read_table", "table_names"]

TABLES = Path(__file__).parent / "tables"
UNITS = {"percent": 100.0, "ms": 1.0, "hours": 1.0, "examples": 1.0, "MB": 1.0, "M": 1.0}
PICTURES = ("line", "lines", "latency", "accuracy")
_NOTHING = "-"


@dataclass(frozen=True)
class Cell:
    """Which number of which run: the fields of a row and of a column together."""

    metric: str = ""
    inferred: str = ""
    """The number that stands there, marked as computed from another, where the run has no `metric`."""
    task: str = ""
    split: str = ""
    start: str = ""
    model: str = ""
    variation: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Of training, by their names without dashes in front: what the variation is."""
    run: str = ""
    seeds: Mapping[str, int] = field(default_factory=dict)
    """How many at a scale, where they are not the table's."""


@dataclass(frozen=True)
class Column:
    """A column and its part of the cells."""

    title: str
    cell: Mapping[str, Any]
    unit: str
    digits: int
    """Behind the decimal point of what is measured here."""


@dataclass(frozen=True)
class Row:
    """A row, its part of the cells, and the paper's numbers."""

    name: str
    title: str
    group: str
    cell: Mapping[str, Any]
    paper: tuple[Value | None, ...]
    """One for each column; None where the paper has none."""
    only: str
    """Why there is nothing to run, and the row is the paper's alone; else empty."""
    scales: tuple[str, ...] = ()
    """The scales that have it; all where none is named."""

    def at(self, scale: str) -> bool:
        """Whether a scale has this row."""
        return not self.scales or scale in self.scales


@dataclass(frozen=True)
class Picture:
    """How a table is drawn; `pictures.draw` knows the kinds."""

    kind: str
    caption: str
    x: str
    y: str


@dataclass(frozen=True)
class Table:
    """A table of a paper, or one that the papers do not have."""

    name: str
    title: str
    source: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    tolerance: float
    """How far a mean may be from the paper's, at its own scale, to count as the same; in the column's unit."""
    notes: tuple[str, ...]
    seeds: Mapping[str, int]
    """How many at a scale, where they are not the scale's."""
    picture: Picture | None

    def cell(self, row: Row, column: Column) -> Cell:
        """What of what run stands in a row and a column."""
        where = f"{self.name}, row {row.name}, {column.title}"
        both = {"flags", "metric", "inferred", "run"}
        merged = {**row.cell, **column.cell}
        flags = {**row.cell.get("flags", {}), **column.cell.get("flags", {})}
        if flags:
            merged["flags"] = flags
        for name in (both - {"flags"}) & merged.keys():
            merged[name] = str(merged[name]).format_map({k: v for k, v in merged.items() if k not in both})
        return made(Cell, {k: v for k, v in merged.items() if k in Cell.__dataclass_fields__}, where=where)

    def measured(self, row: Row) -> list[Column]:
        """The columns in which a row has something to run: where the paper has numbers, those with one."""
        if row.only:
            return []
        if not any(row.paper):
            return list(self.columns)
        return [column for column, value in zip(self.columns, row.paper, strict=True) if value]

    def row(self, name: str) -> Row:
        """The row of that name; ConfigError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise ConfigError(f"{self.name} has no row {name}{suggested(name, names)}", argument="row")


def table_names() -> list[str]:
    """All tables: the poly-encoder paper's, ConveRT's, and those that the papers do not have."""

    def place(name: str) -> tuple[bool, str, int]:
        kind, _, number = name.rpartition("-")
        return (not number.isdigit(), "" if kind == "poly" else kind, int(number) if number.isdigit() else 0)

    return sorted((path.stem for path in TABLES.glob("*.yaml")), key=place)


def read_table(name: str) -> Table:
    """The table of that name.

    Raises:
        ConfigError: there is none, or its file is wrong; the message says where.
    """
    names = table_names()
    if name not in names:
        raise ConfigError(f"there is no table {name}{suggested(name, names)}", argument="table")
    path = TABLES / f"{name}.yaml"
    return _table(name, made(_Document, read_document(path), where=path.name), where=path.name)


@dataclass(frozen=True)
class _Document:
    title: str
    source: str
    columns: list[Any]
    groups: list[Any]
    unit: str = "percent"
    digits: int = 1
    """Both of columns that have none of their own."""
    tolerance: float = 0.5
    notes: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    picture: dict[str, Any] | None = None


def _table(name: str, document: _Document, *, where: str) -> Table:
    columns = []
    for number, values in enumerate(listed(document.columns, where=f"{where}, columns"), start=1):
        title, cell = _titled(values, where=f"{where}, column {number}")
        own = {"unit": cell.pop("unit", document.unit), "digits": cell.pop("digits", document.digits)}
        column = made(Column, {"title": title, "cell": cell, **own}, where=f"{where}, column {number}")
        if column.unit not in UNITS:
            raise ConfigError(f"{where}, column {number}: unit {column.unit} is unknown{suggested(column.unit, UNITS)}")
        columns.append(column)
    rows: list[Row] = []
    for number, group in enumerate(listed(document.groups, where=f"{where}, groups"), start=1):
        at = f"{where}, group {number}"
        title, cell = _titled(group, where=at)
        for values in listed(cell.pop("rows", None), where=f"{at}, rows"):
            rows.append(_row(values, group=title, cell=cell, columns=len(columns), where=at))
    names = [row.name for row in rows]
    for twice in {one for one in names if names.count(one) > 1}:
        raise ConfigError(f"{where}: two rows are called {twice}")
    picture = made(Picture, document.picture, where=f"{where}, picture") if document.picture else None
    if picture and picture.kind not in PICTURES:
        raise ConfigError(f"{where}, picture: kind {picture.kind} is unknown{suggested(picture.kind, PICTURES)}")
    return Table(
        name=name,
        title=document.title,
        source=document.source,
        columns=tuple(columns),
        rows=tuple(rows),
        tolerance=document.tolerance,
        notes=tuple(document.notes),
        seeds=document.seeds,
        picture=picture,
    )


def _row(values: object, *, group: str, cell: Mapping[str, Any], columns: int, where: str) -> Row:
    title, own = _titled(values, where=where)
    name = str(own.pop("name", ""))
    where = f"{where}, row {name or title}"
    if not name:
        raise ConfigError(f"{where}: name is missing")
    try:
        paper = tuple(
            None if str(one) == _NOTHING else read_value(one) for one in own.pop("paper", [_NOTHING] * columns)
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if len(paper) != columns:
        raise ConfigError(f"{where}: paper has {len(paper)} numbers for {columns} columns; write - where there is none")
    only = str(own.pop("only", ""))
    scales = tuple(own.pop("scales", cell.get("scales", ())))
    cell = {name: value for name, value in cell.items() if name != "scales"}
    return Row(name=name, title=title, group=group, cell={**cell, **own}, paper=paper, only=only, scales=scales)


def _titled(values: object, *, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(values, dict) or not isinstance(values.get("title", ""), str):
        raise ConfigError(f"{where}: must be a mapping with a title")
    return values.get("title", ""), {name: value for name, value in values.items() if name != "title"}
