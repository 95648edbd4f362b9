"""Byte-pair vocabularies of other projects: their files, and what the `tokenizers` library wants beyond them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from polyencoder.errors import CheckpointError

__all__ = ["complete", "read_lines", "read_merges", "with_unknown_rows"]

Merge = tuple[str, str]


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a UTF-8 text file, split at line feeds alone: tokens may hold other line separators."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{os.fspath(path)}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{os.fspath(path)}: not a readable text file in UTF-8 ({error})") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_merges(path: str | os.PathLike[str]) -> list[Merge]:
    """The merges of a byte-pair encoding, first learnt first.

    Reads `left right` lines (GPT-2's `vocab.bpe`, with its version line) and `left right count` lines (fastBPE).
    """
    merges = []
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1 and line.startswith("#version"):
            continue
        fields = line.split(" ")
        if len(fields) not in (2, 3) or not all(fields):
            raise CheckpointError(f"{os.fspath(path)}, line {number}: {line!r} is not a merge, `left right [count]`")
        merges.append((fields[0], fields[1]))
    return merges


def complete(vocabulary: dict[str, int], merges: Iterable[Merge], *, size: int) -> dict[str, int]:
    """The vocabulary with all that its merges take and give; what is new is numbered from `size`.

    A text reaches its tokens through others, some of which never remain in training text and so are in no
    dictionary. The `tokenizers` library wants them numbered all the same; `with_unknown_rows` gives them the
    embedding that they had, that of the unknown token.
    """
    completed = dict(vocabulary)
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in completed:
                completed[token] = size + len(completed) - len(vocabulary)
    return completed


def with_unknown_rows(words: Tensor, *, unknown: int, size: int) -> Tensor:
    """Word embeddings [n, dim] with copies of the unknown token's up to `size` rows."""
    return torch.cat([words, words[unknown].expand(size - len(words), -1)])
