"""Generates docs/results.md, the papers' numbers beside ours, from `tables/*.yaml` and the stored results.

And the comparison of a user's runs with both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.reproduce.cells import explain_unavailable, get_cell, get_run
from benchmarks.reproduce.results import RESULTS, Result, read_results
from benchmarks.reproduce.runs import ReproductionRun
from benchmarks.reproduce.scales import Scale, list_scale_names, read_scale
from benchmarks.reproduce.tables import UNITS, Cell, Column, Row, Table, list_table_names, read_table
from benchmarks.reproduce.values import Value, compute_mean
from polyencoder.export.card import format_table

PAGE = Path(__file__).parents[2] / "docs/results.md"
PICTURES = PAGE.parent / "results"
LEFT_OUT = {
    "ConveRT, Table 1": "the sizes of three intent data sets, of which only BANKING77 is public.",
    "ConveRT, Tables 7 and 9": "links to data and models, no measurements.",
}
COUNTED = {"examples", "MB", "kB", "M"}
"""Units of numbers that no seed changes."""
_ABOUT = "- `--scale {scale.name}`: {scale.title}. Hours in its file are for {scale.machine}."
_HEAD = """# Results

The papers' numbers beside this project's. One command reproduces a table or some of its rows:

<!-- not run: takes hours -->
```sh
python -m benchmarks.reproduce convai2 --row bi --row poly-64 --seeds 1 --datapath ../shared/data
```

`--datapath` is ParlAI's data folder. `--display-commands` prints a table's commands, `--dry-run` lists missing files
and models. The same command resumes after an interruption; several processes with it share its runs. Results go to
`runs/results` (`--out`) and are printed beside the papers' and this page's. This page is generated from
`benchmarks/results` and the tables' files: `python -m benchmarks.reproduce all --write-docs`.

{scales}

"Here" is this project: the mean and, with several seeds, the standard deviation; in brackets the number of seeds. An
empty cell is not measured, or not in the paper. Below each table: the encoder, the tokens of contexts + candidates, the
machine, which other work shared, and the time of a run.
"""


@dataclass(frozen=True)
class RunMeasures:
    """The measured numbers of a table at a scale."""

    scale: Scale
    values: Mapping[tuple[str, str], Value]
    """By row name and column title."""
    results: Mapping[str, Sequence[Result]]
    """By run; only runs that have results."""
    inputs: Mapping[str, Sequence[str]]
    """Titles of rows, by what their trained rankers start from and read."""


Head = tuple[Column, RunMeasures | None]
"""A column of the page: the paper's numbers (None), or a scale's."""


def generate_page(results: Path) -> str:
    """Generate the whole page.

    Raises:
        ConfigError, InputError: a table or a stored result is invalid; the message names the file.
    """
    scales = [read_scale(name) for name in list_scale_names()]
    lines = [_HEAD.format(scales="\n".join(_ABOUT.format(scale=scale) for scale in scales))]
    for name in list_table_names():
        table = read_table(name)
        here = [read_measured(table, scale, results) for scale in scales]
        lines += _format_section(table, here)
        if table.picture and (PICTURES / f"{name}.svg").exists():
            lines.append(f"\n![{table.picture.caption}]({PICTURES.name}/{name}.svg)")
    lines += ["", "## Left out", ""]
    lines += [f"- {name}: {why}" for name, why in LEFT_OUT.items()]
    return "\n".join(lines) + "\n"


def read_measured(table: Table, scale: Scale, results: Path) -> RunMeasures:
    """Read the stored results of a table's cells at a scale."""
    results_of: dict[str, list[Result]] = {}
    values: dict[tuple[str, str], Value] = {}
    inputs: dict[str, list[str]] = {}
    rows = [row for row in table.rows if row.is_at(scale.name)]
    for row in rows:
        for column in () if row.only else table.columns:  # also those where the paper has no number
            cell = get_cell(scale, table, row, column)
            if explain_unavailable(scale, cell):
                continue
            run = get_run(scale, cell, where=f"{table.name}, row {row.name}, {column.title}")
            stored = results_of.setdefault(run.name, read_results(results, scale.name, run))
            inferred = not any(cell.metric in result.metrics for result in stored)
            metric = cell.inferred if inferred else cell.metric
            numbers = [result.metrics[metric] * UNITS[column.unit] for result in stored if metric in result.metrics]
            if numbers:
                values[row.name, column.title] = replace(compute_mean(numbers, digits=column.digits), inferred=inferred)
                if cell.model and not cell.run:
                    titles = inputs.setdefault(_describe_inputs(scale, cell, run), [])
                    titles += [] if row.title in titles else [row.title]
    return RunMeasures(scale, values, {name: stored for name, stored in results_of.items() if stored}, inputs)


def _describe_inputs(scale: Scale, cell: Cell, run: ReproductionRun) -> str:
    """The encoder that a run starts from, and what it reads."""
    flags = dict(pairwise(run.steps[0].command))
    text, label = flags["--text-truncate"], flags["--label-truncate"]
    separator = flags.get("--turn-separator")
    between = f", `--turn-separator {separator}`" if separator else ""
    return f"{scale.starts[cell.start].title}, {text} + {label} tokens{between}"


def format_grid(table: Table, rows: Sequence[Row], heads: Sequence[Head], names: Sequence[str]) -> list[str]:
    """The lines of a Markdown table of these rows and columns; `names` are the headings."""
    lines: list[list[str]] = []
    group, is_grouped = None, len({row.group for row in rows}) > 1
    for row in rows:
        if row.group and row.group != group and is_grouped:
            lines.append([f"**{row.group}**", *[""] * len(names)])
        group = row.group
        lines.append([row.title, *(_format_cell(table, row, column, measures) for column, measures in heads)])
    return format_table(["", *names], lines).splitlines()


def iter_compared(table: Table, scale: Scale, rows: Sequence[Row], results: Path) -> Iterator[str]:
    """Yield the lines of a Markdown table of these rows: the columns with a number in `results`; no lines without any.

    Raises:
        ConfigError, InputError: a result is invalid; the message names the file.
    """
    here = read_measured(table, scale, results)
    published = read_measured(table, scale, RESULTS)
    names, heads = [], list[Head]()
    for column in table.columns:
        cells = [(row.name, column.title) for row in rows]
        if not any(cell in here.values for cell in cells):
            continue
        if any(cell in table.paper_values for cell in cells):
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


def _format_section(table: Table, all_measured: Sequence[RunMeasures]) -> Iterator[str]:
    with_numbers = [measures for measures in all_measured if measures.values]
    yield f"\n## {table.name}: {table.title}\n"
    yield f"{table.source}.\n"
    heads: list[Head] = []
    for column in table.columns:
        if any(title == column.title for _, title in table.paper_values):
            heads.append((column, None))
        heads += [(column, here) for here in with_numbers if any(title == column.title for _, title in here.values)]
    names = [f"{column.title}, {f'here, {here.scale.name}' if here else 'paper'}" for column, here in heads]
    if not heads:  # no number at all yet
        heads, names = [(column, None) for column in table.columns], [column.title for column in table.columns]
    yield from format_grid(table, table.rows, heads, names)
    notes = [*table.notes, *_format_left_out(table)]
    for numbers in with_numbers:
        scale = numbers.scale  # which may have other tasks in the place of the table's
        parts = [scale.tasks[name].note for name in scale.tables.get(table.name, {}).values()]
        for inputs, titles in numbers.inputs.items():
            parts.append(inputs + (f" ({'; '.join(titles)})" if len(numbers.inputs) > 1 else ""))
        notes.append(f"{scale.name}: {'. '.join([*parts, _describe_measurement(numbers)])}.")
    if notes:
        yield ""
    for note in notes:
        yield f"- {note}"


def _format_left_out(table: Table) -> Iterator[str]:
    """The rows that cannot be measured, by their reasons."""
    titles: dict[str, list[str]] = {}
    for row in table.rows:
        if row.only:
            titles.setdefault(row.only, []).append(row.title)
    for reason, names in titles.items():
        yield f"{', '.join(names)}: {reason}."


def _format_cell(table: Table, row: Row, column: Column, here: RunMeasures | None) -> str:
    """A cell, as Markdown."""
    paper = table.paper_values.get((row.name, column.title))
    value = here.values.get((row.name, column.title)) if here else paper
    if value is None:
        return ""
    text = str(value)
    if here is None:
        return text
    if column.unit not in COUNTED:
        text += f" ({value.count})"
    if here.scale.name == "paper" and paper:
        text += ", the same" if value.is_near(paper, tolerance=table.tolerance) else ", **not the same**"
    return text


def _describe_measurement(numbers: RunMeasures) -> str:
    """Where, when and in how many hours the numbers of a table were measured."""
    results = [result for of_run in numbers.results.values() for result in of_run]
    dates = sorted({result.date for result in results})
    machines = sorted({_shorten(f"{result.machine.get('gpu') or result.machine.get('cpu')}") for result in results})
    threads = sorted({int(result.machine.get("threads", 0)) for result in results})
    hours = [sum(result.seconds.values()) / 3600 for result in results]
    where = f"{' and '.join(machines)}, {' or '.join(map(str, threads))} thread{'s' * (threads != [1])}"
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{where}, {span}; {_format_runs(len(results), statistics.median(hours))}"


def _shorten(machine: str) -> str:
    return machine.replace("(R)", "").removesuffix(" Processor")


def _format_runs(count: int, hours: float) -> str:
    if hours >= 1:
        duration = f"{hours:.1f} hours"
    else:
        duration = f"{60 * hours:.0f} minutes" if 60 * hours >= 1.5 else "about a minute or less"
    return f"1 run, {duration}" if count == 1 else f"{count} runs, median {duration}"
