"""Reads BPE vocabularies of other projects, for the `tokenizers` library."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from polyencoder.errors import CheckpointError

Merge = tuple[str, str]

VERSION = "#version: 0.2"
CONTINUED, END_OF_WORD = "@@", "</w>"


def read_lines(path: str | os.PathLike[str], *, holds: str = "text") -> list[str]:
    """The lines of a UTF-8 file that `holds` this, split only at line feeds: tokens may contain other separators."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error
        raise CheckpointError(f"{os.fspath(path)}: cannot be read ({reason}); it must hold {holds} in UTF-8") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_numbers(path: str | os.PathLike[str], *, kind: str) -> dict[str, int]:
    """Reads a JSON vocabulary, token -> number; `kind` names the file in errors."""
    try:
        numbers = json.loads("\n".join(read_lines(path, holds=kind)))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{os.fspath(path)}: not valid JSON ({error})") from None
    if not isinstance(numbers, dict) or not all(isinstance(number, int) for number in numbers.values()):
        raise CheckpointError(f"{os.fspath(path)}: not {kind}, an object of token -> number")
    return numbers


def read_merges(path: str | os.PathLike[str], *, versioned: bool = False) -> list[Merge]:
    """The merges of a byte-pair encoding, in the order in which they were trained.

    Reads `left right` lines (GPT-2's `vocab.bpe`, subword-nmt's codes) and `left right count` lines (fastBPE). A first
    line with a version is skipped; files that are `versioned` must have it.
    """
    merges: dict[Merge, None] = {}
    for number, line in enumerate(read_lines(path, holds="the dictionary's merges"), start=1):
        if number == 1 and versioned and line != VERSION:
            raise CheckpointError(f"{os.fspath(path)}: begins with {line[:40]!r}, not with subword-nmt's {VERSION!r}")
        if number == 1 and line.startswith("#version"):
            continue
        fields = line.strip("\r ").split(" ")
        if len(fields) not in (2, 3) or not all(fields) or (versioned and len(fields) == 3):
            raise CheckpointError(
                f"{os.fspath(path)}, line {number}: {line!r:.60} is not a merge, `left right [count]`"
            )
        merges[fields[0], fields[1]] = None
    return list(merges)


def complete(vocabulary: dict[str, int], merges: Iterable[Merge], *, size: int) -> dict[str, int]:
    """Completes a vocabulary with all inputs and outputs of its merges; new tokens are numbered from `size`.

    Merges pass through intermediate tokens; some never remain in the training text, so the dictionary lacks them.
    The `tokenizers` library needs a number for each; `names.add_unknown_rows` gives them the embedding of the
    unknown token, as before.
    """
    completed = dict(vocabulary)
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in completed:
                completed[token] = size + len(completed) - len(vocabulary)
    return completed


def build_merge_tokenizer(
    symbols: Sequence[str],
    merges: list[Merge],
    *,
    special: Collection[str],
    unknown: str,
    origin: str | os.PathLike[str],
) -> Tokenizer:
    """The tokenizer of fastBPE's or subword-nmt's merges, without a pre-tokenizer.

    Dictionaries mark a piece that another follows, `hel@@ lo`; the `tokenizers` library marks the last, `hel lo</w>`.
    symbols: of the dictionary, in the order of their ids; pieces that it lacks get the next ids (`complete`). special:
    symbols that are not pieces, which keep their names. CheckpointError if two symbols would have the same name.
    """
    names = [symbol if symbol in special else convert_symbol(symbol) for symbol in symbols]
    if len(set(names)) < len(symbols):
        raise CheckpointError(f"{os.fspath(origin)}: two of its tokens have the same name: not a dictionary of merges")
    vocabulary = complete({name: i for i, name in enumerate(names)}, merges, size=len(names))
    unknown = names[symbols.index(unknown)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix=END_OF_WORD))
    tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return tokenizer


def convert_symbol(symbol: str) -> str:
    """The name of a dictionary's symbol in the `tokenizers` library: hel@@ -> hel, lo -> lo</w>."""
    is_continued = symbol.endswith(CONTINUED) and symbol != CONTINUED
    return symbol.removesuffix(CONTINUED) if is_continued else symbol + END_OF_WORD
