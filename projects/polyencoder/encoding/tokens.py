"""The tokens of many candidates."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Sequence

from polyencoder.text.encoder import TextEncoder

_log = logging.getLogger(__name__)

PART = 1 << 12  # texts tokenized at a time: a tokenizer's output for a text is a hundred times the size of its ids


DistinctCandidates = tuple[list["array[int]"], dict[str, int]]


def tokenize_candidates(text: TextEncoder, candidates: Sequence[str], *, remember: bool) -> list[array[int]]:
    """The tokens of many candidates, in little memory; a warning says once how many are cut."""
    parts = (candidates[i : i + PART] for i in range(0, len(candidates), PART))
    rows = [array("i", row) for part in parts for row in text.tokenize_candidates(part, remember=remember)]
    if not text.warned_of_cut and (count := text.count_cut(candidates, rows)):
        text.warned_of_cut = True
        _log.warning(text.format_cut_message(count, of=len(rows)))
    return rows


def find_distinct_candidates(text: TextEncoder, candidates: Iterable[str]) -> DistinctCandidates:
    """The different tokens of candidates, and the row of each candidate, for equal scores to the last bit."""
    texts = list(dict.fromkeys(candidates))
    rows: dict[bytes, int] = {}
    ids = tokenize_candidates(text, texts, remember=True)
    row_of = {candidate: rows.setdefault(row.tobytes(), len(rows)) for candidate, row in zip(texts, ids, strict=True)}
    return [array("i", row) for row in rows], row_of
