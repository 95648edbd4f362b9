"""The layouts of records that examples are read from.

- a pair: `{"context": ["...", "..."] or "...", "response": "...", "candidates": [...]}`; the candidates may be missing;
- several right responses: `{"context", "responses": [...]}`, with or without candidates;
- graded candidates: `{"context", "candidates": [...], "labels": [2, 0, 1]}`, a number for each;
- sentence-transformers' triples and n-tuples: `{"anchor" or "query", "positive", "negative", "negative_1", ...}`.

Columns may have other names. Or the context has a column for each turn, as in PolyAI's datasets: `context`, the last
one, `context/0`, the one before it, `context/1`, ... Or it is a chat, `[{"role": "user", "content": "..."}]`, also
under the name `messages`: each message of the assistant after one of the user is then the response of an example, as in
fine-tuning of chat models, unless the record has a response or candidates, which are of the last message.

A list in one cell of a table, in JSON or as Python writes it, is a list: of turns, messages, candidates, responses or
labels. In a table every record has all columns: an empty or null one counts as absent beside one of another layout.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise, takewhile
from typing import Any

from polyencoder.checks import checked_candidate, parse_number, unencodable
from polyencoder.data.example import Example
from polyencoder.data.ubuntu import LABEL as UBUNTU_LABEL
from polyencoder.data.ubuntu import is_ubuntu
from polyencoder.errors import InputError
from polyencoder.text.dialogue import (
    SPEAKERS,
    SystemMessages,
    are_messages,
    is_of_tools,
    num_system_messages,
    turns_of_messages,
)

MESSAGES = "messages"
"""The column of chat messages, `[{"role": "user", "content": "hi"}]`, in records without a context."""
ANCHORS = ("anchor", "query")
POSITIVE = "positive"
_NUMPY_LIST = re.compile(r"""(['"])\s+['"]""")
_NEGATIVE = re.compile(r"negative(?:_(\d+))?")


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a file of pairs, and what becomes of a chat's system messages."""

    context: str = "context"
    response: str = "response"
    candidates: str = "candidates"
    responses: str = "responses"
    labels: str = "labels"
    system: SystemMessages = "leave-out"


def pair_of(record: dict[str, Any], columns: Columns, *, where: str, add_response: bool = False) -> Example:
    """Reads the example of a record; InputError names `where` an invalid one is from."""
    if is_ubuntu(record):
        _check_right(record.get(UBUNTU_LABEL), where=where)
    given, record = record, usual_columns(record, columns, where=where)
    right = next((name for name in (columns.response, columns.responses) if name in record), columns.response)
    names = {"context": columns.context}
    if columns.labels not in record:
        names["response"] = right
    for part in ("candidates", "responses", "labels"):  # a named column must exist
        if getattr(columns, part) != getattr(Columns, part):
            names[part] = getattr(columns, part)
    for part, name in names.items():
        if name not in record and (part in ("context", "response") or name not in given):
            raise InputError(
                f"{where}: has no {name!r}; it has {', '.join(map(repr, record)) or 'nothing'}. Name the column with "
                f"the {part}",
                argument=f"columns.{part}",
            )
    try:
        turns, candidates = _turns(record, columns), _texts(record.get(columns.candidates), "candidate")
        responses = _responses(record, columns) if right in record else None
        if problem := next(filter(None, map(unencodable, (*turns, *(responses or ())))), None):
            raise TypeError(problem)
        if (labels := labels_of(record, columns, candidates)) is not None:
            return _graded(turns, candidates, labels, responses, where=where)
    except (TypeError, InputError) as error:
        raise InputError(f"{where}: {error}") from None
    assert responses is not None
    others = [text for text in responses if text not in candidates] if candidates else []
    if others and not add_response:
        raise InputError(f"{where}: its response is not among its {len(candidates)} candidates")
    numbers = None if len(responses) == 1 else dict.fromkeys(responses, 1.0)
    return Example(turns, responses[0], [*others, *candidates] or None, where, numbers)


def _graded(
    turns: list[str], candidates: list[str], labels: Sequence[Any], responses: list[str] | None, *, where: str
) -> Example:
    """An example with a number for each candidate; a response that the record has must be (one of) the best."""
    if not candidates:
        raise InputError("has labels, but no candidates that they are of")
    example = Example.graded(turns, candidates, labels, where=where)
    numbers = example.labels or {example.label: 1.0}
    for text in responses or ():
        if text not in numbers or (responses == [text] and numbers[text] < numbers[example.label]):
            raise InputError(f"its response has the label {numbers.get(text, 0):g}, and another candidate a higher one")
    return replace(example, label=responses[0]) if responses is not None and len(responses) == 1 else example


def labels_of(record: Mapping[str, Any], columns: Columns, candidates: Sequence[str]) -> Sequence[Any] | None:
    """The candidates' labels; None for a pair without, and for other data in a column of that name."""
    if columns.labels not in record:
        return None
    value = record[columns.labels]
    must = columns.labels != Columns.labels or not {columns.response, columns.responses} & record.keys()
    if not must and not candidates:
        return None
    if isinstance(value, str) and (must or "|" in value):  # one cell of a CSV file
        numbers = [parse_number(number) for number in value.split("|")]
        if None not in numbers:
            return numbers
    elif isinstance(value, list) and (must or (value and all(type(one) in (int, float) for one in value))):
        return value
    if must:
        raise TypeError(f"the labels are {value!r:.60}, not a list of numbers (in CSV: joined by |)")
    return None


def parse_list(value: Any, *, where: str, numbers: bool = False) -> Any:
    """The list of texts or messages, or of `numbers`, that a text is in JSON or Python; else the value itself.

    InputError for a list as NumPy prints it, without commas, of which Python reads neighbouring texts as one.
    """
    if not isinstance(value, str) or not (text := value.strip()).startswith("[") or not text.endswith("]"):
        return value
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        if _NUMPY_LIST.search(text):
            raise InputError(
                f"{where}: {text:.60} is a list as NumPy prints it, without commas: write the column with json.dumps"
            ) from None
        try:
            items = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
    kinds = (int | float,) if numbers else (str, Mapping)
    return items if any(all(isinstance(item, kind) for item in items) for kind in kinds) else value


def split_chat(record: dict[str, Any], columns: Columns, *, where: str, counts: Counter[str]) -> list[dict[str, Any]]:
    """The records of a chat: one for each message of the assistant after one of the user. Another record is itself.

    So is a chat with a response, candidates or labels. Counts `chats`, their `replies` and their `system` messages.
    InputError for messages that cannot be read, or without such a reply.
    """
    lists = _without_absent(_with_lists(record, columns, where=where), columns)
    messages = _messages(lists, columns)
    counts["system"] += num_system_messages(messages)
    if not are_messages(messages) or {columns.response, columns.responses, columns.labels, columns.candidates} & {
        *lists
    }:
        return [record]
    turns_of_messages(messages, name=f"{where}: the messages")
    spoken = [
        (place, message)
        for place, message in enumerate(messages)
        if message["role"] in SPEAKERS and not is_of_tools(message)
    ]
    replies = [place for place, message in spoken if message["role"] == "assistant"]
    answers = [
        place
        for (_, earlier), (place, message) in pairwise(spoken)
        if (earlier["role"], message["role"]) == ("user", "assistant")
    ]
    if not answers:
        raise InputError(
            f"{where}: has no {columns.response!r}, and none of its messages is the assistant's after the user's"
        )
    counts.update(chats=1, replies=len(replies), answers=len(answers))
    rest = {name: value for name, value in lists.items() if name not in (columns.context, MESSAGES)}
    return [
        {
            **rest,
            columns.context: messages[:place],
            columns.response: turns_of_messages([messages[place]], name=f"{where}: the response")[0],
        }
        for place in answers
    ]


def usual_columns(record: dict[str, Any], columns: Columns, *, where: str) -> dict[str, Any]:
    """A record of any layout in the columns of a pair or graded candidates; InputError if it has no response."""
    record = _with_lists(record, columns, where=where)
    return _of_tuple(_of_messages(_without_absent(record, columns), columns, where=where), columns, where=where)


def _with_lists(record: dict[str, Any], columns: Columns, *, where: str) -> dict[str, Any]:
    lists = (columns.context, columns.candidates, columns.responses, columns.labels, MESSAGES)
    found = {
        name: parse_list(record[name], where=where, numbers=name == columns.labels) for name in lists if name in record
    }
    return {**record, **found}


def _without_absent(record: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """Leaves out columns that are empty or null because another one has the context, or says what is right."""
    filled = {name for name, value in record.items() if not _is_empty(value)}
    usual, right = columns.context == Columns.context, {columns.response, columns.responses}
    has_context = columns.context in filled
    is_tuple = usual and not has_context and POSITIVE in filled and not filled.isdisjoint(ANCHORS)
    is_chat = are_messages(record[columns.context] if has_context else record.get(MESSAGES) if usual else None)
    absent: set[str] = set()
    if is_tuple or is_chat:
        absent |= {columns.context, columns.candidates, *ANCHORS}
    if is_tuple or is_chat or {columns.candidates, columns.labels} <= filled or right & filled:
        absent |= {*right, columns.labels}
    return {name: value for name, value in record.items() if name in filled or name not in absent}


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list) and not value)


def _responses(record: Mapping[str, Any], columns: Columns) -> list[str]:
    """The right responses of a record without labels, one or several; without duplicates."""
    if columns.response in record:
        return [_text(record[columns.response])]
    found = list(dict.fromkeys(_texts(record[columns.responses], "response")))
    if not found:
        raise TypeError("the responses are empty")
    return found


def _of_tuple(record: dict[str, Any], columns: Columns, *, where: str) -> dict[str, Any]:
    """Renames the columns of a triple or n-tuple to those of a pair; other records are returned unchanged."""
    usual = columns.context == Columns.context and columns.response == Columns.response
    anchor = next((name for name in ANCHORS if name in record), None)
    taken = {columns.context, columns.response, columns.responses, columns.labels} & record.keys()
    if not usual or anchor is None or POSITIVE not in record or taken:
        return record
    found = sorted((int(match[1] or 0), name) for name in record if (match := _NEGATIVE.fullmatch(name)))
    negatives = [text for _, name in found if not _is_empty(text := record[name])]  # shorter than other tuples
    _check_right(record.get("label"), where=where)
    if any(isinstance(text, list) for text in (record[POSITIVE], *negatives)):
        raise InputError(f"{where}: a tuple of {anchor!r} and {POSITIVE!r} has a text in each column, and here a list")
    made = {columns.context: record[anchor], columns.response: record[POSITIVE]}
    own = record.get(columns.candidates)
    if own is None and negatives:
        own = [record[POSITIVE], *negatives]
    return made if own is None else made | {columns.candidates: own}


def _check_right(label: Any, *, where: str) -> None:
    """Raises InputError for a text that its own label calls wrong: half of sentence-transformers' labelled pairs."""
    if label in (0, "0", "0.0"):
        raise InputError(
            f"{where}: has the label 0, so its response is wrong, and pairs have right ones: leave it out",
            argument="skip_bad_examples",
        )


def _of_messages(record: dict[str, Any], columns: Columns, *, where: str) -> dict[str, Any]:
    """Converts a record of `messages` to the columns of a pair; the default response is the assistant's last one."""
    messages = _messages(record, columns)
    if not are_messages(messages):
        return record
    found = {**record, columns.context: messages}
    if columns.response not in record:
        last = messages[-1]
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            if {columns.responses, columns.labels} & record.keys():
                return found
            raise InputError(
                f"{where}: has no {columns.response!r}, and the last of its messages, which would be the response, is "
                "not the assistant's"
            )
        said = turns_of_messages([last], name=f"{where}: the response")
        if not said:
            raise InputError(f"{where}: the last of its messages, which would be the response, only calls tools")
        found |= {columns.context: messages[:-1], columns.response: said[0]}
    return found


def _messages(record: Mapping[str, Any], columns: Columns) -> Any:
    """What may be the messages of a chat."""
    return record.get(columns.context, record.get(MESSAGES) if columns.context == Columns.context else None)


def earlier_columns(record: Mapping[str, Any], column: str = "context") -> list[str]:
    """The columns of earlier turns, oldest first; `context/0` is the latest of them, as in PolyAI's datasets."""
    found = takewhile(record.__contains__, (f"{column}/{number}" for number in count()))
    return list(found)[::-1]


def with_earlier(record: Mapping[str, Any], column: str = "context") -> Any:
    """The context of a record: the turns of all of its columns, oldest first, or what its one column has.

    InputError for an earlier turn that is no text.
    """
    value, earlier = record[column], [record[name] for name in earlier_columns(record, column)]
    if not earlier or not isinstance(value, str | None):
        return value
    if others := [turn for turn in earlier if not isinstance(turn, str | None)]:
        raise InputError(f"a turn before the last one of the context is {type(others[0]).__name__}, not a text")
    turns = (" ".join((turn or "").split()) for turn in (*earlier, value))  # each in one line, as the tasks have it
    return [turn for turn in turns if turn]


def _turns(record: dict[str, Any], columns: Columns) -> list[str]:
    value = with_earlier(record, columns.context)
    if isinstance(value, str):
        turns = [value]
    elif are_messages(value):
        turns = turns_of_messages(value, name="the context", system=columns.system)
    elif isinstance(value, list) and all(isinstance(turn, str) for turn in value):
        turns = value
    else:
        raise TypeError(f"the context is neither a text nor a list of texts, but {type(value).__name__}")
    turns = [turn.strip() for turn in turns if turn.strip()]
    if not turns:
        raise TypeError("the context is empty")
    return turns


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"the response is {'empty' if isinstance(value, str) else type(value).__name__}, not a text")
    return value.strip()


def _texts(value: Any, name: str) -> list[str]:
    if _is_empty(value):
        return []
    if isinstance(value, str):  # one cell of a CSV file
        value = value.split("|")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError(f"the {name}s are not a list of texts (in CSV: joined by |)")
    return [checked_candidate(f"{name} {place}", text).strip() for place, text in enumerate(value)]
