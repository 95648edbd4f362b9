"""Truncates a dialogue to the model's length: keeps the latest turns, whole if possible."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from polyencoder.config import PairStart, TruncationSide

PERSON_TOKENS = ("__p1__", "__p2__")
"""ParlAI's speaker tokens: the partner, the model."""

_HAS_PERSON = re.compile(r"^__p[12]__ ", re.MULTILINE)

# A persona line as ConvAI2 and ParlAI's other tasks write it, also behind one of ParlAI's `person_tokens`
PERSONA_MARK = re.compile(r"^\s*(?:__p[12]__ )?(?:your|partner's) persona:", re.IGNORECASE)


def find_persona_lines(lines: Sequence[str]) -> set[int]:
    """The indices of the persona lines."""
    return {row for row, line in enumerate(lines) if PERSONA_MARK.match(line)}


def select_persona_lines(lines: Sequence[str]) -> list[str]:
    """The persona lines, `your persona: ...`."""
    return [line for line in lines if PERSONA_MARK.match(line)]


def add_person_tokens(turns: Sequence[str], *, after_newline: bool) -> list[str]:
    """Adds ParlAI's speaker tokens to turns: the last one is the partner's, `__p1__`.

    Speakers take turns; persona lines belong to the turn behind them. Turns that have tokens already keep these.
    """
    if any(_HAS_PERSON.search(turn) for turn in turns):
        return list(turns)
    marked = list(turns)
    spoken = [row for row, turn in enumerate(turns) if len(find_persona_lines(lines := turn.split("\n"))) < len(lines)]
    for back, row in enumerate(reversed(spoken or [len(turns) - 1])):
        token = PERSON_TOKENS[back % 2]
        if after_newline and token == PERSON_TOKENS[0]:
            *lines, last = turns[row].split("\n")
            marked[row] = "\n".join([*lines, f"{token} {last}"])
            continue
        while row and row - 1 not in spoken:
            row -= 1
        marked[row] = f"{token} {marked[row]}"
    return marked


def split_persona(turns: Iterable[str]) -> list[str]:
    """Splits persona lines from turns; the rest of a turn remains one text, with its line ends."""
    parts: list[str] = []
    for turn in turns:
        lines = turn.split("\n")
        if persona := select_persona_lines(lines):
            turn = "\n".join(line for line in lines if line not in persona)
        parts += [*persona, turn]
    return [part for part in parts if part.strip()]


def select_latest_utterances(lines: Sequence[str], *, size: int) -> list[str]:
    """The last `size` utterances of a dialogue, one per line (-1: all), and every persona line before them.

    The paper considers "at most 20 utterances of dialogue history", and "the context also contains the persona
    sentences" (Section 5.1 of its first version): these are no utterances.
    """
    spoken = [row for row, line in enumerate(lines) if not PERSONA_MARK.match(line)]
    if size < 0 or len(spoken) <= size:
        return list(lines)
    first = spoken[-size]
    return [*select_persona_lines(lines[:first]), *lines[first:]]


def split_immediate_and_extra(turns: Sequence[str], *, size: int, numbered: bool = False) -> tuple[str, str]:
    """Splits turns into ConveRT's inputs (Section 2.2): the last turn, and the others of the last `size` (-1: all).

    The other turns are one text, joined by spaces: the most recent first, persona lines (each a turn here) at the end,
    which is cut first. `numbered` puts `0: ` before the most recent turn, `1: ` before the turn before it, and so
    on, as ConveRT's model for DSTC7 has them. Without earlier turns and persona lines, or with a size of 1, it is "".
    """
    if not turns:
        return "", ""
    persona = select_persona_lines(turns)
    *earlier, last = [turn for turn in turns if not PERSONA_MARK.match(turn)] or turns[-1:]
    if size == 1:
        return last, ""
    recent = list(reversed(earlier))[: size - 1 if size > 0 else None]
    if numbered:
        recent = [f"{number}: {turn}" for number, turn in enumerate(recent)]
    return last, " ".join([*recent, *(line for line in persona if line is not last)])


def join_turns(
    turns: Sequence[Sequence[int]],
    *,
    start: int,
    end: int,
    separator: Sequence[int],
    max_tokens: int,
    persona: Collection[int] = (),
    side: TruncationSide = "left",
) -> list[int]:
    """Joins the `select_turns` of a context: `start turn separator turn ... end`, at most `max_tokens` long."""
    fitting = select_turns(turns, separator=len(separator), max_tokens=max_tokens - 2, persona=persona, side=side)
    return [start, *join_with_separator(fitting.values(), separator=separator), end]


def join_with_separator(turns: Iterable[Sequence[int]], *, separator: Sequence[int]) -> list[int]:
    """Joins turns with the separator between them."""
    ids: list[int] = []
    for position, turn in enumerate(turns):
        if position:
            ids.extend(separator)
        ids.extend(turn)
    return ids


def select_turns(
    turns: Sequence[Sequence[int]],
    *,
    separator: int,
    max_tokens: int,
    persona: Collection[int] = (),
    side: TruncationSide = "left",
) -> dict[int, Sequence[int]]:
    """The indices of the turns, in order, that fit into `max_tokens` with `separator` tokens between them.

    The persona lines, at the indices `persona`, and the latest turns are kept. A turn that does not fit beside the
    persona is left out whole, with all earlier turns. The last turn is always kept; it is cut on this side only if
    it alone is too long, or if it takes more than half of the tokens and the persona needs them. Persona lines
    that do not fit beside the last turn are dropped.
    """
    if not turns:
        return {}
    spoken = [row for row in range(len(turns)) if row not in persona] or [len(turns) - 1]
    *earlier, last = spoken
    reserved = min(len(turns[last]), max(1, max_tokens // 2))
    room = max_tokens - reserved
    fitting: dict[int, Sequence[int]] = {}
    for row in sorted({*persona} - {last}):
        if (cost := len(turns[row]) + separator) <= room:
            fitting[row] = turns[row]
            room -= cost
    size = min(len(turns[last]), reserved + room)
    fitting[last] = turns[last][len(turns[last]) - size :] if side == "left" else turns[last][:size]
    room -= len(fitting[last]) - reserved
    for row in reversed(earlier):
        if (cost := len(turns[row]) + separator) > room:
            break
        fitting[row] = turns[row]
        room -= cost
    return {row: fitting[row] for row in sorted(fitting)}


def join_tokens(
    turns: Sequence[Sequence[int]], *, start: int, end: int, separator: Sequence[int], max_tokens: int
) -> list[int]:
    """Joins turns as ParlAI does: the last `max_tokens` tokens of all turns, between start and end."""
    return [start, *join_with_separator(turns, separator=separator)[-max_tokens:], end]


def surround(ids: Sequence[int], *, start: int, end: int, max_tokens: int) -> list[int]:
    """Adds start and end to a candidate's first tokens: at most `max_tokens` in all."""
    return [start, *ids[: max_tokens - 2], end]


def join_pair(
    context: Sequence[int], candidate: Sequence[int], *, start: PairStart, max_tokens: int | None = None
) -> tuple[list[int], list[int]]:
    """Joins a context and a candidate for a cross-encoder: token ids, and their segments, 0 or 1.

    `start` is `RankerConfig.candidate_start`. With "end" and "same_segment" all is segment 0: tokenizers that make such
    pairs give no other segment, even for a BERT, which has two. A candidate that makes the pair longer than
    `max_tokens` keeps its first tokens and its end token.
    """
    rest = candidate if start is True else [*(context[-1:] if start == "end" else ()), *candidate[1:]]
    if max_tokens is not None and len(context) + len(rest) > max_tokens:
        rest = [*rest[: max_tokens - len(context) - 1], rest[-1]]
    return [*context, *rest], [0] * len(context) + [1 if isinstance(start, bool) else 0] * len(rest)


def normalize_text(text: str) -> str:
    """Normalizes case and white space, to compare texts."""
    return " ".join(text.casefold().split())


def normalize_lines(turns: Iterable[str] | str) -> set[str]:
    """The turns of a context and their lines, normalized by `normalize_text`, to find candidates that repeat them."""
    turns = [turns] if isinstance(turns, str) else turns
    return {normalize_text(line) for turn in turns for line in (turn, *turn.splitlines())} - {""}
