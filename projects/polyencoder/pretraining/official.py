"""Official files as a corpus: the rows of the Ubuntu Dialogue Corpus v2, the dialogues of DSTC7's Ubuntu track."""

from __future__ import annotations

from typing import Any

from polyencoder.errors import InputError

__all__ = ["CONTEXT", "MESSAGES", "dstc7_turns", "is_dstc7", "is_ubuntu", "ubuntu_turns"]

CONTEXT, LABEL = "Context", "Label"
UTTERANCES = ("Utterance", "Ground Truth Utterance")  # of training; of validation and test
MESSAGES, ANSWERS = "messages-so-far", "options-for-correct-answers"


def is_ubuntu(record: dict[str, Any]) -> bool:
    """Whether it is a row of Ubuntu's CSV files."""
    return CONTEXT in record and any(name in record for name in UTTERANCES)


def ubuntu_turns(record: dict[str, Any], where: str) -> list[str] | None:
    """The turns of a context, and the response; None of a row with a wrong one or none. A turn's utterances are joined.

    The rows of one conversation have contexts of growing length, each with the next response: of each row its response
    alone is new.

    Raises:
        InputError: the label is no number, or context or response no text.
    """
    try:
        if float(record.get(LABEL, 1)) < 0.5:
            return None
    except (TypeError, ValueError):
        raise InputError(f"{where}: the label is {record[LABEL]!r}, neither 0 nor 1") from None
    name = next(name for name in UTTERANCES if name in record)
    for column in (CONTEXT, name):
        if not isinstance(record[column], str):
            raise InputError(f"{where}: {column!r} is {record[column]!r:.60}, not a text")
    parts = [*record[CONTEXT].split("__eot__"), record[name].replace("__eot__", " ")]
    turns = [part.replace("__eou__", " ") for part in parts]
    return turns if turns[-1].strip() else None


def is_dstc7(record: dict[str, Any]) -> bool:
    """Whether it is a dialogue of DSTC7's files."""
    return MESSAGES in record


def dstc7_turns(record: dict[str, Any], where: str) -> list[str]:
    """The messages of a dialogue, and the right answer, which the test file does not have.

    Raises:
        InputError: they are not as in DSTC7's files.
    """
    try:
        said = [one["utterance"] for one in (*record[MESSAGES], *record.get(ANSWERS, ())[:1])]
        if not all(isinstance(one, str) for one in said):
            raise TypeError("an utterance that is no text")
        return said
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: not a dialogue of DSTC7's subtask 1 ({type(error).__name__}: {error})") from None
