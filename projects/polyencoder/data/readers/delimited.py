"""Reads CSV and TSV files with a header row, with Python's csv module."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from itertools import count

from polyencoder.data.readers.bad import OnBad, raise_it
from polyencoder.data.readers.lines import build_decode_error, iter_raw_lines
from polyencoder.data.readers.sources import DamagedFile, DataFile, Source, open_source
from polyencoder.errors import ConfigError, InputError

# Python's own limit, 131,072 characters, is less than some conversations have. The limit is the whole process's.
LONGEST_CELL = 1 << 26
SAMPLE = 1 << 14  # bytes that a delimiter is detected in
SWALLOWED = 1 << 17  # bytes: a row of more that has wrong quotes is several rows
csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))


DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", r"\t": "\t"}
"""Delimiters of columns, by the names that a shell needs not quote."""


def iter_rows(
    source: Source, *, usual: str = ",", delimiter: str | None = None, bad: OnBad = raise_it
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a file, each with its place: (`file.csv, line 12`, {column: cell}). Skips empty lines.

    Quoted cells may hold delimiters and newlines; the place of a row is the line where it begins. After a quote that is
    never closed, or only far away, reading continues with the next line.

    Args:
        usual: what separates columns, unless another one of `DELIMITERS` fits the first kilobytes better.
        delimiter: what separates columns, whatever they show.
        bad: gets the error of a row whose quotes are wrong, or with more or fewer cells than the header; of a file
            without a header, and of one that is damaged from some line on.

    Raises:
        InputError: a file that cannot be opened; and what `bad` raises.
    """
    with open_source(source) as file:
        delimiter = delimiter or detect_delimiter(_peek_beginning(file), usual=usual)
        text = _Lines(file)
        try:
            names = _read_header(text, delimiter)
        except InputError as error:  # without its header, nothing of the file can be used
            bad(error)
            return
        for where, cells in _read_cells(text, delimiter, bad):
            if len(cells) != len(names):
                bad(InputError(f"{where}: has {len(cells)} cells, but the header names {len(names)} columns"))
                continue
            yield where, dict(zip(names, cells, strict=True))


def parse_delimiter(text: str | None) -> str | None:
    """The character that a delimiter or its name means; ConfigError for another text."""
    character = text if text is None else DELIMITERS.get(text.lower(), text)
    if character is not None and (len(character) != 1 or character in '"\r\n'):
        raise ConfigError(
            f"delimiter is {text!r:.40}; give one character or {', '.join(map(repr, DELIMITERS))}", argument="delimiter"
        )
    return character


def _peek_beginning(file: DataFile) -> bytes:
    try:
        return file.peek(SAMPLE)[:SAMPLE]
    except DamagedFile:  # which the next read meets again
        return b""


def detect_delimiter(sample: bytes, *, usual: str = ",") -> str:
    """The delimiter by which most rows have as many cells as the header, at least two; `usual` if several tie.

    `csv.Sniffer` looks for a character that is alike frequent in all lines, which a comma of texts may be.
    """

    def count_fitting(delimiter: str) -> int:
        lines = sample.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
        try:
            header, *rows = (row for row in csv.reader(lines, delimiter=delimiter) if row)
        except (csv.Error, ValueError):  # no row
            return 0
        return 0 if len(header) < 2 else 1 + sum(len(row) == len(header) for row in rows)

    return max(dict.fromkeys((usual, ",", ";", "\t", "|")), key=count_fitting)


def _read_header(text: _Lines, delimiter: str) -> list[str]:
    """The column names of the header row."""
    for where, names in _read_cells(text, delimiter, raise_it):
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise InputError(f"{where}: the header names the column {duplicate!r} twice")
        return names
    raise InputError(f"{text.path}: has no header row that names its columns")


def _read_cells(text: _Lines, delimiter: str, bad: OnBad) -> Iterator[tuple[str, list[str]]]:
    """Yields the complete, non-empty rows of cells, with their places."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    while True:
        text.begin_row()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except DamagedFile as error:
            bad(DamagedFile(f"{error}; line {text.number} is the last whole one"))
            return
        except csv.Error as error:
            # An open quote is only noticed at the next quote, or at the end of the file.
            rewinds = text.ended or text.row_size > SWALLOWED
            lines = text.where if rewinds else text.whole
            bad(text.error or InputError(f"{lines}: not a row of cells ({error}); look for a quote out of place"))
            if rewinds:
                text.rewind_behind_first()
                reader = csv.reader(text, delimiter=delimiter, strict=True)
            continue
        if text.error is not None:
            bad(text.error)
        elif cells:
            yield text.where, cells


class _Lines:
    """Feeds lines to csv and counts them. A line that cannot be decoded is empty and makes its row invalid."""

    def __init__(self, file: DataFile) -> None:
        self._numbered = zip(count(1), iter_raw_lines(file))
        self._rewound: deque[tuple[int, bytes]] = deque()
        self._row: list[tuple[int, bytes]] = []
        self.path = file.path
        self._first = 0
        self.number = 0
        self.error: InputError | None = None
        self.ended = False

    def begin_row(self) -> None:
        self._first = self.number + 1
        self._row = []
        self.error = None
        self.ended = False

    @property
    def row_size(self) -> int:
        """The number of bytes of the row so far."""
        return sum(len(line) for _, line in self._row)

    def rewind_behind_first(self) -> None:
        """Gives the lines of this row again, without the first one."""
        self._rewound.extendleft(reversed(self._row[1:]))
        self.number = self._first

    @property
    def where(self) -> str:
        """The place of the row."""
        return f"{self.path}, line {self._first}"

    @property
    def whole(self) -> str:
        """The place of the row with its last line, if that is another."""
        return self.where if self.number == self._first else f"{self.path}, lines {self._first} to {self.number}"

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        try:
            numbered = self._rewound.popleft() if self._rewound else next(self._numbered)
        except StopIteration:
            self.ended = True
            raise
        self._row.append(numbered)
        self.number, line = numbered
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.error = build_decode_error(self.path, self.number, error)
            return ""
