"""Reads lines of text with their numbers, for error messages."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from polyencoder.data.readers.bad import OnBad, raise_it
from polyencoder.data.readers.sources import DamagedFile, DataFile, Source, open_source
from polyencoder.errors import InputError

BLOCK = 1 << 14  # bytes; how far the file is read ahead of the caller
_UTF16 = "the file looks like UTF-16: save it as UTF-8"
LOOKS_LIKE = {
    codecs.BOM_UTF16_LE: _UTF16,
    codecs.BOM_UTF16_BE: _UTF16,
    b"PK\3\4": "the file looks like an Excel workbook or a zip archive: save the table as CSV in UTF-8",
    b"\x1f\x8b": "the file looks compressed: let its name end in .gz",
}
"""Remedies for files of other kinds, by their first bytes."""


def iter_lines(source: Source, *, bad: OnBad = raise_it) -> Iterator[tuple[int, str]]:
    r"""Yields the lines of a file, without line ends, with their numbers from 1.

    Lines end with `\n`, `\r\n` or `\r`, as in Python's text files, and nowhere else: `\u2028` and its like stay in
    their line. A mark of UTF-8 at the beginning is dropped.

    Args:
        source: a path (`.gz`, `.bz2`, `.xz`, `.zst` are decompressed, `-` is standard input) or an open `DataFile`.
        bad: gets the error of a line that is not UTF-8, and of a file that is damaged from some line on.

    Raises:
        InputError: a file that cannot be opened, and what `bad` raises.
    """
    number = 1  # of the next line
    with open_source(source) as file:
        try:
            # Many lines at a time, which is what Python is fast at; one by one only where a byte among them is wrong.
            for block in _read_blocks(file):
                if b"\r" in block:
                    block = b"\n".join(block.splitlines()) + b"\n"
                block = block.removesuffix(b"\n")
                try:
                    texts = block.decode().split("\n")
                except UnicodeDecodeError:
                    yield from _decode_each(block, path=file.path, number=number, bad=bad)
                    number += block.count(b"\n") + 1
                else:
                    yield from enumerate(texts, start=number)
                    number += len(texts)
        except DamagedFile as error:
            bad(DamagedFile(f"{error}; line {number - 1} is the last whole one"))


def iter_raw_lines(file: DataFile) -> Iterator[bytes]:
    """Yields the lines of a file as bytes, with line ends, without a byte order mark."""
    for block in _read_blocks(file):
        yield from block.splitlines(keepends=True)


def _read_blocks(file: DataFile) -> Iterator[bytes]:
    """Yields the file in blocks of whole lines, without a byte order mark."""
    mark = codecs.BOM_UTF8
    while block := file.read1(BLOCK):
        if not block.endswith(b"\n"):
            try:
                block += file.readline()
            except DamagedFile:  # which the next read meets again
                block = block[: block.rfind(b"\n") + 1]
        block = block.removeprefix(mark)
        mark = b""
        if block:
            yield block


def _decode_each(block: bytes, *, path: str, number: int, bad: OnBad) -> Iterator[tuple[int, str]]:
    for row, line in enumerate(block.split(b"\n"), start=number):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            bad(build_decode_error(path, row, error))
        else:
            yield row, text


def build_decode_error(path: str, number: int, error: UnicodeDecodeError) -> InputError:
    """The error for a line that is not UTF-8."""
    byte = f"byte {error.object[error.start]:#04x} at column {error.start + 1}"
    hints = (todo for mark, todo in LOOKS_LIKE.items() if number == 1 and error.object.startswith(mark))
    todo = next(hints, "convert the file to UTF-8")
    return InputError(f"{path}, line {number}: is not {error.encoding} text ({byte}); {todo}")
