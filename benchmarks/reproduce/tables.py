"""Reads tables of papers from `tables/NAME.yaml`: rows, columns and the paper's numbers.

A cell combines the fields of its row and its column. They name a run: either a ranker's `task`, `start` (initial
weights) and `model`, with a `variation` and its `flags` if it differs in other flags, or a `run` by name. `metric`
selects one of the run's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.reproduce.values import Value, read_value
from benchmarks.reproduce.yaml_schema import check_non_empty_list, parse_fields
from polyencoder.errors import ConfigError, suggest_similar
from polyencoder.settings.base import read_yaml

TABLES = Path(__file__).parent / "tables"
UNITS = {"percent": 100.0, "ms": 1.0, "hours": 1.0, "examples": 1.0, "MB": 1.0, "kB": 1e-3, "M": 1.0}
_NOTHING = "-"


@dataclass(frozen=True)
class Cell:
    """One number of one run: the merged fields of a row and a column."""

    metric: str = ""
    inferred: str = ""
    """The metric shown instead, marked ≈, if the run has no `metric`."""
    task: str = ""
    split: str = ""
    start: str = ""
    model: str = ""
    variation: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of training, without leading dashes: what the variation consists of."""
    run: str = ""
    seeds: Mapping[str, int] = field(default_factory=dict)
    """Number of seeds by scale, if not the table's."""


@dataclass(frozen=True)
class Column:
    """A column and its part of the cells."""

    title: str
    cell: Mapping[str, Any]
    unit: str
    digits: int
    """Decimals of the numbers measured here."""


@dataclass(frozen=True)
class Row:
    """A row, its part of the cells, and the paper's numbers."""

    name: str
    title: str
    group: str
    cell: Mapping[str, Any]
    paper: tuple[Value | None, ...]
    """One value for each column; None where the paper has no number."""
    only: str
    """Why the row has only the paper's numbers and is not run; else empty."""
    scales: tuple[str, ...] = ()
    """The scales that have it; empty: all."""

    def is_at(self, scale: str) -> bool:
        """Whether a scale has this row."""
        return not self.scales or scale in self.scales


@dataclass(frozen=True)
class Picture:
    """How a table is drawn; `pictures.draw` describes the kinds."""

    kind: Literal["line", "lines", "latency", "accuracy"]
    caption: str
    x: str
    y: str


@dataclass(frozen=True)
class Table:
    """A table of a paper, or one of this project's own."""

    name: str
    title: str
    source: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    tolerance: float
    """Largest difference from the paper's mean, at the scale `paper`, that counts as equal; in the column's unit."""
    notes: list[str]
    seeds: Mapping[str, int]
    """Number of seeds by scale, if not the scale's."""
    picture: Picture | None

    @property
    def paper_values(self) -> dict[tuple[str, str], Value]:
        """The paper's numbers by row name and column title."""
        return {
            (row.name, column.title): value
            for row in self.rows
            for column, value in zip(self.columns, row.paper, strict=True)
            if value
        }

    def get_cell(self, row: Row, column: Column) -> Cell:
        """The cell of a row and a column."""
        where = f"{self.name}, row {row.name}, {column.title}"
        both = {"flags", "metric", "inferred", "run"}
        merged = {**row.cell, **column.cell}
        flags = {**row.cell.get("flags", {}), **column.cell.get("flags", {})}
        if flags:
            merged["flags"] = flags
        for name in (both - {"flags"}) & merged.keys():
            merged[name] = str(merged[name]).format_map({k: v for k, v in merged.items() if k not in both})
        return parse_fields(Cell, {k: v for k, v in merged.items() if k in Cell.__dataclass_fields__}, where=where)

    def list_measured(self, row: Row) -> list[Column]:
        """The columns in which a row is run: those with a number of the paper, or all if the row has none."""
        if row.only:
            return []
        if not any(row.paper):
            return list(self.columns)
        return [column for column, value in zip(self.columns, row.paper, strict=True) if value]

    def get_row(self, name: str) -> Row:
        """The row of that name; ConfigError if it does not exist."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise ConfigError(f"{self.name} has no row {name}{suggest_similar(name, names)}", argument="row")


def list_table_names() -> list[str]:
    """The names of all tables: the poly-encoder paper's, ConveRT's, then this project's own."""

    def get_sort_key(name: str) -> tuple[bool, str, int]:
        kind, _, number = name.rpartition("-")
        return (not number.isdigit(), "" if kind == "poly" else kind, int(number) if number.isdigit() else 0)

    return sorted((path.stem for path in TABLES.glob("*.yaml")), key=get_sort_key)


def read_table(name: str) -> Table:
    """Read a table.

    Raises:
        ConfigError, InputError: it does not exist, or its file is invalid; the message says where.
    """
    names = list_table_names()
    if name not in names:
        raise ConfigError(f"there is no table {name}{suggest_similar(name, names)}", argument="table")
    path = TABLES / f"{name}.yaml"
    return _build_table(name, parse_fields(_Document, read_yaml(path), where=path.name), where=path.name)


@dataclass(frozen=True)
class _Document:
    title: str
    source: str
    columns: list[Any]
    groups: list[Any]
    unit: str = "percent"
    digits: int = 1
    """Defaults for columns without a unit or digits."""
    tolerance: float = 0.5
    notes: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    picture: Picture | None = None


def _build_table(name: str, document: _Document, *, where: str) -> Table:
    columns = []
    for number, values in enumerate(check_non_empty_list(document.columns, where=f"{where}, columns"), start=1):
        title, cell = _split_title(values, where=f"{where}, column {number}")
        options = {"unit": cell.pop("unit", document.unit), "digits": cell.pop("digits", document.digits)}
        column = parse_fields(Column, {"title": title, "cell": cell, **options}, where=f"{where}, column {number}")
        if column.unit not in UNITS:
            raise ConfigError(
                f"{where}, column {number}: unit {column.unit} is unknown{suggest_similar(column.unit, UNITS)}"
            )
        columns.append(column)
    rows: list[Row] = []
    for number, group in enumerate(check_non_empty_list(document.groups, where=f"{where}, groups"), start=1):
        at = f"{where}, group {number}"
        title, cell = _split_title(group, where=at)
        for values in check_non_empty_list(cell.pop("rows", None), where=f"{at}, rows"):
            rows.append(_build_row(values, group=title, cell=cell, columns=len(columns), where=at))
    names = [row.name for row in rows]
    for duplicate in {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{where}: two rows are called {duplicate}")
    facts = {fact: getattr(document, fact) for fact in ("title", "source", "tolerance", "notes", "seeds", "picture")}
    return Table(name=name, columns=tuple(columns), rows=tuple(rows), **facts)


def _build_row(values: object, *, group: str, cell: Mapping[str, Any], columns: int, where: str) -> Row:
    title, fields = _split_title(values, where=where)
    name = str(fields.pop("name", ""))
    where = f"{where}, row {name or title}"
    if not name:
        raise ConfigError(f"{where}: name is missing")
    try:
        paper = tuple(
            None if str(number) == _NOTHING else read_value(number)
            for number in fields.pop("paper", [_NOTHING] * columns)
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if len(paper) != columns:
        raise ConfigError(f"{where}: paper has {len(paper)} numbers for {columns} columns; write - for a missing one")
    only = str(fields.pop("only", ""))
    scales = tuple(fields.pop("scales", cell.get("scales", ())))
    cell = {name: value for name, value in cell.items() if name != "scales"}
    return Row(name=name, title=title, group=group, cell={**cell, **fields}, paper=paper, only=only, scales=scales)


def _split_title(values: object, *, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(values, dict) or not isinstance(values.get("title", ""), str):
        raise ConfigError(f"{where}: must be a mapping with a title")
    return values.get("title", ""), {name: value for name, value in values.items() if name != "title"}
