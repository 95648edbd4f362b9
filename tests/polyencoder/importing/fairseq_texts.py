"""Dictionaries as fairseq makes them of encoded lines, and ids as it looks them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from polyencoder.importing.fairseq_dictionary import FairseqDictionary

__all__ = ["dictionary_of", "ids_of", "words_of"]

UNKNOWN = 3


def dictionary_of(lines: Iterable[str], path: Path) -> FairseqDictionary:
    """What `fairseq-preprocess` makes of lines: symbols by count, fillers up to a multiple of 8. A mask follows."""
    counts = Counter(symbol for line in lines for symbol in line.split())
    rows = [f"{symbol} {count}" for symbol, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    rows += [f"madeupword{n:04d} 0" for n in range(-(len(rows) + 4) % 8)]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return FairseqDictionary.read(path, n_tokens=len(rows) + 5, origin="model.pt")


def ids_of(tokenizer: Tokenizer, text: str, *, size: int) -> list[int]:
    """The ids of a text as `TextEncoder` reads it: a special token that is typed is text.

    Those behind the `size` symbols of a dictionary begin as its unknown token.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = True
    return [i if i < size else UNKNOWN for i in copy.encode(text, add_special_tokens=False).ids]


def words_of(text: str) -> str:
    """The text with one space for each run of white space, at which fairseq splits."""
    return " ".join(text.split())
