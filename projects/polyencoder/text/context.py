"""Fitting a dialogue into the model's length: the latest turns, whole where possible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# ConvAI2's way of writing one, which ParlAI's other tasks share; behind a token of its `person_tokens` too
_PERSONA = re.compile(r"\s*(?:__p[12]__ )?(?:your|partner's) persona:", re.IGNORECASE)


def persona_lines(lines: Sequence[str]) -> list[str]:
    """Those of the lines that describe a speaker, `your persona: ...`, instead of saying something."""
    return [line for line in lines if _PERSONA.match(line)]


def apart_from_persona(turns: Iterable[str]) -> list[str]:
    """Turns of which each persona line is one of its own; what else a turn says stays one text, line ends included."""
    parts: list[str] = []
    for turn in turns:
        lines = turn.split("\n")
        if persona := persona_lines(lines):
            turn = "\n".join(line for line in lines if line not in persona)
        parts += [*persona, turn]
    return [part for part in parts if part.strip()]


def latest_utterances(lines: Sequence[str], *, size: int) -> list[str]:
    """The last `size` utterances of a dialogue, each line one, -1 for all; and every persona line before them.

    The paper considers "at most 20 utterances of dialogue history", and "the context also contains the persona
    sentences" (Section 5.1 of its first version): these are no utterances.
    """
    said = [place for place, line in enumerate(lines) if not _PERSONA.match(line)]
    if size < 0 or len(said) <= size:
        return list(lines)
    first = said[-size]
    return [*persona_lines(lines[:first]), *lines[first:]]


def immediate_and_extra(turns: Sequence[str], *, size: int, numbered: bool = False) -> tuple[str, str]:
    """ConveRT's two inputs (Section 2.2): the whole last turn; and of the `size` last ones, -1 for all, the others.

    These are one text, joined by spaces, the most recent first and the persona lines, each of which is a turn here, at
    the end, since it is cut there. `numbered` puts `0: ` before the most recent, `1: ` before the one before it, and so
    on, as ConveRT's model for DSTC7 has them. Without earlier turns and persona lines, or with a size of 1, it is "".
    """
    if not turns:
        return "", ""
    persona = persona_lines(turns)
    *earlier, last = [turn for turn in turns if not _PERSONA.match(turn)] or turns[-1:]
    if size == 1:
        return last, ""
    recent = list(reversed(earlier))[: size - 1 if size > 0 else None]
    if numbered:
        recent = [f"{number}: {turn}" for number, turn in enumerate(recent)]
    return last, " ".join([*recent, *(line for line in persona if line is not last)])


def join_turns(
    turns: Sequence[Sequence[int]], *, start: int, end: int, separator: Sequence[int], max_tokens: int
) -> list[int]:
    """Token ids of a context: `start turn separator turn ... end`, at most `max_tokens` long.

    The latest turns are kept. A turn that does not fit any more is left out whole, with all before it; only when
    the very last turn is too long by itself is it cut, and then its latest tokens stay.
    """
    room = max_tokens - 2
    kept: list[Sequence[int]] = []
    for turn in reversed(turns):
        cost = len(turn) + (len(separator) if kept else 0)
        if cost > room:
            break
        room -= cost
        kept.append(turn)
    if not kept and turns:
        kept = [turns[-1][-room:]]
    ids = [start]
    for position, turn in enumerate(reversed(kept)):
        if position:
            ids.extend(separator)
        ids.extend(turn)
    ids.append(end)
    return ids


def join_tokens(
    turns: Sequence[Sequence[int]], *, start: int, end: int, separator: Sequence[int], max_tokens: int
) -> list[int]:
    """Token ids of a context, ParlAI's way: the last `max_tokens` tokens of all turns, between start and end."""
    ids: list[int] = []
    for position, turn in enumerate(turns):
        if position:
            ids.extend(separator)
        ids.extend(turn)
    return [start, *ids[-max_tokens:], end]


def surround(ids: Sequence[int], *, start: int, end: int, max_tokens: int) -> list[int]:
    """Token ids of a candidate: `start words end`, its first words kept, at most `max_tokens` long."""
    return [start, *ids[: max_tokens - 2], end]
