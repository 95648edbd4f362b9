"""Converts rows of the Ubuntu Dialogue Corpus v2 to turns."""

from __future__ import annotations

from typing import Any

from polyencoder.checks import parse_number
from polyencoder.errors import InputError

CONTEXT, LABEL = "Context", "Label"
UTTERANCES = ("Utterance", "Ground Truth Utterance")  # of training; of validation and test


def is_ubuntu(record: dict[str, Any]) -> bool:
    """Whether a record is a row of Ubuntu's CSV files."""
    return CONTEXT in record and any(name in record for name in UTTERANCES)


def parse_ubuntu_turns(record: dict[str, Any], where: str) -> list[str] | None:
    """The turns of a context, and the response, which may be empty; None for a row whose response is wrong.

    A turn's utterances are joined. The rows of one conversation have contexts of growing length, each with the next
    response: only the response of each row is new.

    Raises:
        InputError: a column is missing, the label is neither 0 nor 1, or context or response no text.
    """
    if (label := parse_number(str(record.get(LABEL, 1)))) not in (0, 1):
        raise InputError(f"{where}: the label is {record[LABEL]!r}, neither 0 nor 1")
    if not label:
        return None
    columns = [CONTEXT, next((name for name in UTTERANCES if name in record), UTTERANCES[LABEL not in record])]
    for column in columns:
        if column not in record:
            raise InputError(f"{where}: has no column {column!r}; it has {', '.join(map(repr, record))}")
        if not isinstance(record[column], str):
            raise InputError(f"{where}: {column!r} is {record[column]!r:.60}, not a text")
    context, response = (record[column] for column in columns)
    if "\n" in context:  # in a quoted cell; it must not look like the end of a turn
        context = " ".join(context.split())
    # blanks stay, which takes half the time of `join_ubuntu_turn`
    context = context.replace(" __eou__ ", " ").replace("__eou__", " ")
    return [*(turn for part in context.split("__eot__") if (turn := part.strip())), join_ubuntu_turn(response)]


def join_ubuntu_turn(text: str) -> str:
    """The utterances of one turn, joined by spaces."""
    return " ".join(text.replace("__eou__", " ").replace("__eot__", " ").split())
