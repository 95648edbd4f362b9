"""The table that opens README.md: what is measured of `peers` at the small scale, between two marks."""

from __future__ import annotations

import textwrap
from pathlib import Path

from benchmarks.reproduce.page import Head, Measured, grid, measured
from benchmarks.reproduce.scales import read_scale
from benchmarks.reproduce.tables import Table, read_table
from polyencoder.errors import InputError

__all__ = ["README", "opened"]

README = Path(__file__).parents[2] / "README.md"
_BEGIN = "<!-- made by python -m benchmarks.reproduce all --write-docs -->\n"
_END = "<!-- until here -->\n"
_BELOW = """\
R@1/20, in %: ConvAI2's validation set, after MiniLM has learnt from the same 20,000 examples{few}. For
both cross-encoders, of one seed, that is too little: with BERT and all examples the paper's has 87.1, its bi-encoder
83.3 ([more rows](docs/results.md#convai2-convai2s-public-validation-set)). ms: from a context to the ten best of so
many candidates, on one thread{timed}; ≈ is inferred from 1,000. MB: the vectors of 1,000,000 candidates; the process
that searches them, at its peak; the part of it that is pages of files, which the system takes back at need.
[How all of it was measured](docs/results.md#peers-beside-sentence-transformers).
"""
_TIMED = "answering-peers"  # the run of times and memory
_NOTHING = "not yet"
_WIDTH = 140  # of README's lines


def opened(text: str, results: Path) -> str:
    """README's text with the table of today.

    Raises:
        InputError: the marks are not in it.
        ConfigError: a table or a kept result is wrong.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise InputError(f"{README}: needs the lines {_BEGIN.strip()} and {_END.strip()}, between which its table is")
    table = read_table("peers")
    here = measured(table, read_scale("small"), results)
    return f"{before}{begin}{_block(table, here)}{end}{after}"


def _block(table: Table, here: Measured) -> str:
    """Rows and columns of which something is measured."""
    places = here.values.keys()
    rows = [row for row in table.rows if any(name == row.name for name, _ in places)]
    heads: list[Head] = [
        (column, here) for column in table.columns if any(title == column.title for _, title in places)
    ]
    if not heads:
        return ""
    lines = grid(table, rows, heads, [column.title for column, _ in heads], empty=_NOTHING)
    few = "; (1) is of one seed so far, (2) of two" if any(here.unfinished(*place) for place in places) else ""
    timed = "".join(
        f" ({one.machine.get('cpu')}, {one.date}, a load of {one.machine.get('load', 0):.0f})"
        for one in here.results.get(_TIMED, ())
    )
    below = textwrap.fill(_BELOW.format(few=few, timed=timed), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, "", below, ""])
