"""fairseq's `dict.txt`: the symbols of a model, in the order of their ids, behind four special ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from polyencoder.errors import CheckpointError
from polyencoder.importing.bpe import read_lines

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, in no dict.txt
PAD, UNKNOWN, MASK = 1, 3, "<mask>"

_FILLER = re.compile(r"madeupword\d{4}")  # up to a multiple of 8
_STRAY = 0.01
"""The share of symbols that the files of an encoding need not have: those that somebody added by hand. Also the share
of an encoding's pieces that a dictionary need not have."""


@dataclass(frozen=True)
class FairseqDictionary:
    """Symbol -> id, and the file that it was read from."""

    path: str
    ids: Mapping[str, int]

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, n_tokens: int, origin: str) -> FairseqDictionary:
        """Reads the `symbol count` lines of a `dict.txt`, for a model of `n_tokens` embeddings, the last perhaps the
        mask's.

        CheckpointError if a line is not a new symbol with its count, or the model has another number of tokens.
        """
        ids = {symbol: i for i, symbol in enumerate(SPECIAL)}
        for number, line in enumerate(read_lines(path), start=1):
            symbol, _, count = line.rpartition(" ")
            if not symbol or not count.isdigit() or symbol in ids:
                raise CheckpointError(
                    f"{os.fspath(path)}, line {number}: {line!r} is not a new `symbol count`, as a dict.txt of fairseq "
                    "has"
                )
            ids[symbol] = len(ids)
        if len(ids) == n_tokens - 1 and MASK not in ids:
            ids[MASK] = len(ids)  # the masked language modelling task adds it to the dictionary
        if len(ids) != n_tokens:
            raise CheckpointError(
                f"{os.fspath(path)}: gives {len(ids)} tokens with the special ones, but {origin} embeds {n_tokens}; "
                "give the dict.txt that it was trained with"
            )
        return cls(os.fspath(path), ids)

    @property
    def special(self) -> list[str]:
        """The special tokens, and the mask if there is one."""
        return [*SPECIAL, *([MASK] if MASK in self.ids else [])]

    @property
    def symbols(self) -> list[str]:
        """The symbols of texts: neither special tokens nor fillers."""
        special = {*SPECIAL, MASK}
        return [symbol for symbol in self.ids if symbol not in special and not _FILLER.fullmatch(symbol)]

    def check(self, is_piece: Callable[[str], bool], *, marked: Callable[[str], bool], source: str) -> None:
        """Raises CheckpointError unless these are the symbols of the encoding in `source`.

        is_piece: whether the encoding has a symbol. marked: whether a symbol has the encoding's mark, and must be a
        piece.
        """
        symbols = self.symbols
        strange = [symbol for symbol in symbols if not is_piece(symbol)]
        wrong = [symbol for symbol in strange if marked(symbol)]
        if wrong or len(strange) > _STRAY * len(symbols):
            raise CheckpointError(
                f"{self.path}: {len(strange):,} of its {len(symbols):,} symbols, such as {[*wrong, *strange][0]!r}, "
                f"are not of {source}; give the files of its own encoding"
            )

    def has(self, pieces: Collection[str]) -> bool:
        """Whether it has nearly all of these pieces."""
        return sum(piece in self.ids for piece in pieces) >= (1 - _STRAY) * len(pieces)
