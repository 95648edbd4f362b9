"""The layouts of records that examples are read from: `LAYOUTS`, in the order in which they are tried.

A record has the first layout whose columns it fills. Columns of a pair may have other names (`Columns`). A context is a
text, turns or chat messages; or it has a column for each turn, as in PolyAI's datasets: `context`, the last one,
`context/0`, the one before it, `context/1`, ... In a chat each message of the assistant after one of the user is the
response of an example, as in fine-tuning of chat models, unless the record has a response or candidates, which belong
to the last message.

A list in one cell of a table, in JSON or as Python writes it, is a list: of turns, messages, candidates, responses or
labels. In a table every record has all columns: empty and null ones count as absent, unless no other layout fits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Annotated, Any

from polyencoder.checks import explain_unencodable, parse_number
from polyencoder.data.cells import find_earlier_columns, is_empty, join_earlier, parse_list, read_response, read_texts
from polyencoder.data.example import Example
from polyencoder.data.readers import parse_delimiter
from polyencoder.data.ubuntu import LABEL as UBUNTU_LABEL
from polyencoder.data.ubuntu import is_ubuntu
from polyencoder.errors import InputError
from polyencoder.settings.metadata import Flag
from polyencoder.text.dialogue import (
    SPEAKERS,
    SYSTEM,
    TOOLS,
    SystemMessages,
    are_messages,
    convert_messages,
    count_system_messages,
    is_of_tools,
)

Record = dict[str, Any]
PARTS = ("context", "response", "candidates", "responses", "labels", "negatives")
"""The columns of a pair, which may have other names."""
ROLES = {"human": "user", "gpt": "assistant", "function_call": "function", "observation": "tool"}
"""OpenAI's roles by ShareGPT's."""
_NEGATIVE = re.compile(r"negative_(\d+)")


@dataclass(frozen=True)
class Columns:
    """The columns of a file of pairs, and how its tables and chats are read."""

    context: str = "context"
    """The column with the context: a text or a list of turns."""
    response: str = "response"
    """The column with the right response."""
    responses: str = "responses"
    """The column with several right responses, in place of one: a list, or one text joined by |."""
    candidates: Annotated[str, Flag(name="candidates_column")] = "candidates"
    """The column with candidates, if any: a list, or one text joined by |."""
    labels: str = "labels"
    """The column with a number for each candidate, 0 for a wrong one and more for a better one, in place of a
    response: a list, or numbers joined by |."""
    negatives: Annotated[str, Flag(name="negatives_column")] = "negatives"
    """The column with wrong responses alone, in place of candidates: a list, or one text joined by |."""
    system: SystemMessages = "leave-out"
    """The system messages of chats: left out, or the persona before the conversation."""
    roles: str = ""
    """Who answers in chats, such as agent,bot (default: assistant and gpt)."""
    delimiter: str | None = None
    """The separator of the columns of CSV and TSV: a character, tab, semicolon or pipe (default: what the first rows
    show)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delimiter", parse_delimiter(self.delimiter))

    @cached_property
    def answering(self) -> frozenset[str]:
        """The `roles`, one by one."""
        return frozenset(filter(None, map(str.strip, self.roles.split(","))))


@dataclass(frozen=True)
class Layout:
    """The columns that a record must fill, those that it must not, and others that are read; `read` makes pairs.

    `read` gets the record's columns that are not empty, under the names of `PARTS`, and returns these of each pair.
    """

    needs: tuple[str, ...]
    read: Callable[[Layout, Record, Columns, str, Counter[str]], list[Record]]
    unless: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def parse_examples(
    record: Record, columns: Columns, *, where: str, add_response: bool = False, counts: Counter[str] | None = None
) -> list[tuple[Example, Record]]:
    """Reads the examples of a record, several of a chat, each with a record of a pair's columns.

    where: the record's place, in errors. add_response: a response that is not among its candidates joins them. counts:
    `chats`, their `replies`, the `answers` among these, and `system` messages, to add to. InputError if the record has
    none of `LAYOUTS`, or one of its columns cannot be used.
    """
    if is_ubuntu(record):
        _check_right(record.get(UBUNTU_LABEL), where=where)
    layout, usual = _find_layout(_rename_columns(record, columns, where=where), columns, where=where)
    try:
        pairs = layout.read(layout, usual, columns, where, Counter() if counts is None else counts)
        examples = [_make_example(pair, columns, where=where, add_response=add_response) for pair in pairs]
    except (TypeError, InputError) as error:
        if str(error).startswith(where):
            raise
        raise InputError(f"{where}: {error}") from None
    if layout.read is _read_pair:
        return [(examples[0], record)]
    read = {*layout.needs, *layout.also, *(getattr(columns, part) for part in PARTS)}
    rest = {name: value for name, value in record.items() if name not in read and not _NEGATIVE.fullmatch(name)}
    named = ({getattr(columns, part): value for part, value in pair.items()} for pair in pairs)
    return [(example, rest | pair) for example, pair in zip(examples, named, strict=True)]


def collect_candidates(record: Record, *, where: str) -> list[str]:
    """The different candidates of a record, right or wrong; none if it has no layout. Errors as in `parse_examples`."""
    if not any(record.keys() >= {*layout.needs} for layout in LAYOUTS):
        return []
    examples = (example for example, _ in parse_examples(record, Columns(), where=where, add_response=True))
    parts = ((example.label, *(example.labels or ()), *(example.candidates or ())) for example in examples)
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _rename_columns(record: Record, columns: Columns, *, where: str) -> Record:
    """Renames columns to `PARTS`, and reads lists in cells; InputError without a column that was named."""
    names = {part: getattr(columns, part) for part in PARTS}
    has_right = not {columns.responses, columns.labels}.isdisjoint(record)
    for part, name in names.items():
        if name != part and name not in record and not (part == "response" and has_right):
            raise InputError(_describe_missing(name, record, where=where, part=part), argument=f"columns.{part}")
    if (column := columns.context) != "context":
        names |= {name.replace(column, "context", 1): name for name in find_earlier_columns(record, column)}
    usual_names = {name: part for part, name in names.items()}
    usual = {
        usual_names.get(name, name): value for name, value in record.items() if name in usual_names or name not in names
    }
    for name in _LISTS & usual.keys():
        usual[name] = parse_list(usual[name], where=where, numbers=name == "labels")
    return usual


def _find_layout(record: Record, columns: Columns, *, where: str) -> tuple[Layout, Record]:
    """The layout that a record's filled columns have, or else all its columns; and these columns."""
    filled = {name: value for name, value in record.items() if not is_empty(value) or name.startswith("context/")}
    right = "response" in filled or "responses" in filled or {"candidates", "labels"} <= filled.keys()
    if not right and are_messages(filled.get("context")):
        filled["messages"] = filled.pop("context")
    for fields in (filled, record):
        for layout in LAYOUTS:
            if fields.keys() >= {*layout.needs} and fields.keys().isdisjoint(layout.unless):
                return layout, fields
    part = "response" if "context" in record else "context"
    layouts = "; ".join(" + ".join(layout.needs) for layout in LAYOUTS)
    problem = _describe_missing(getattr(columns, part), record, where=where, part=part)
    raise InputError(f"{problem}, or give a layout's columns: {layouts}", argument=f"columns.{part}")


def _describe_missing(name: str, record: Record, *, where: str, part: str) -> str:
    names = ", ".join(map(repr, record)) or "nothing"
    return f"{where}: has no {name!r}; it has {names}. Name the column with the {part}"


def _make_example(pair: Record, columns: Columns, *, where: str, add_response: bool) -> Example:
    """Makes an example from the columns of a pair."""
    turns, candidates = _read_turns(pair, columns), read_texts(pair.get("candidates"), "candidate")
    responses = _read_responses(pair) if "response" in pair or "responses" in pair else None
    if problem := next(filter(None, map(explain_unencodable, (*turns, *(responses or ())))), None):
        raise TypeError(problem)
    if (labels := _read_labels(pair, columns, candidates)) is not None:
        return _make_graded(turns, candidates, labels, responses, where=where)
    assert responses is not None
    if not candidates and (wrong := read_texts(pair.get("negatives"), "negative")):
        candidates = list(dict.fromkeys((*responses, *wrong)))
    others = [text for text in responses if text not in candidates] if candidates else []
    if others and not add_response:
        raise InputError(f"its response is not among its {len(candidates)} candidates")
    numbers = None if len(responses) == 1 else dict.fromkeys(responses, 1.0)
    return Example(turns, responses[0], [*others, *candidates] or None, where, numbers)


def _make_graded(
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


def _read_labels(record: Mapping[str, Any], columns: Columns, candidates: Sequence[str]) -> Sequence[Any] | None:
    """The candidates' labels; None for a pair without any, and for other data in a column of that name."""
    if "labels" not in record:
        return None
    value = record["labels"]
    is_required = columns.labels != "labels" or record.keys().isdisjoint(("response", "responses"))
    if not is_required and not candidates:
        return None
    if isinstance(value, str) and (is_required or "|" in value):  # one cell of a CSV file
        numbers = [parse_number(number) for number in value.split("|")]
        if None not in numbers:
            return numbers
    elif isinstance(value, list) and (is_required or (value and all(type(number) in (int, float) for number in value))):
        return value
    if is_required:
        raise TypeError(f"the labels are {value!r:.60}, not a list of numbers (in CSV: joined by |)")
    return None


def has_labels(record: Record, columns: Columns, candidates: Sequence[str], *, where: str) -> bool:
    """Whether a record has labels of these candidates; other data may be in a column of that name."""
    usual = _rename_columns(record, columns, where=where)
    filled = {name: value for name, value in usual.items() if not is_empty(value)}
    return _read_labels(filled, columns, candidates) is not None


def _read_pair(layout: Layout, record: Record, columns: Columns, where: str, counts: Counter[str]) -> list[Record]:
    counts["system"] += count_system_messages(record["context"])
    return [record]


def _read_tuple(layout: Layout, record: Record, columns: Columns, where: str, counts: Counter[str]) -> list[Record]:
    """A context, a right text or several, and wrong ones, as training data for search have them."""
    _check_right(record.get("label"), where=where)
    context, positive = layout.needs
    counts["system"] += count_system_messages(record[context])
    numbered = sorted((int(match[1]), name) for name in record if (match := _NEGATIVE.fullmatch(name)))
    wrong = [*layout.also, *(name for _, name in numbered)] if layout.also else []
    right = _to_texts(record[positive])
    pair = {"context": record[context], **({"responses": right} if len(right) != 1 else {"response": right[0]})}
    if negatives := [text for name in wrong for text in _to_texts(parse_list(record.get(name), where=where) or [])]:
        pair["negatives"] = negatives
    return [pair | ({"candidates": record["candidates"]} if "candidates" in record else {})]


def _to_texts(value: Any) -> list[Any]:
    """A text, texts, or passages with `text` and perhaps `title`, as texts; the messages of a reply become one text."""
    values = value if isinstance(value, list) else [value]
    if are_messages(values) and all(isinstance(item, Mapping) and "role" in item for item in values):
        return ["\n".join(convert_messages(values, name="the response"))]
    return [
        " ".join(filter(None, (item.get("title"), item.get("text")))).strip() if isinstance(item, Mapping) else item
        for item in values
    ]


def _read_chat(layout: Layout, record: Record, columns: Columns, where: str, counts: Counter[str]) -> list[Record]:
    """A pair for each message of the assistant after one of the user. InputError: the chat has no such reply."""
    name = layout.needs[0]
    if not are_messages(record[name]):
        raise InputError(f"{name!r} is {type(record[name]).__name__}, not a list of messages")
    messages = [_read_message(message, columns) for message in record[name]]
    counts["system"] += count_system_messages(messages)
    rest = {part: record[part] for part in PARTS[1:] if part in record}
    if not rest.keys().isdisjoint(("response", "responses", "labels")):
        return [{**rest, "context": messages}]
    if "candidates" in rest:
        last = messages[-1]
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise InputError(
                f"has no {columns.response!r}, and the last of its messages, which would be the response, is not the "
                "assistant's"
            )
        if not (response := convert_messages([last], name="the response")):
            raise InputError("the last of its messages, which would be the response, only calls tools")
        return [{**rest, "context": messages[:-1], "response": response[0]}]
    convert_messages(messages, name="the messages")
    spoken = [
        (idx, message)
        for idx, message in enumerate(messages)
        if message["role"] in SPEAKERS and not is_of_tools(message)
    ]
    answers = [
        idx
        for (_, earlier), (idx, message) in pairwise(spoken)
        if (earlier["role"], message["role"]) == ("user", "assistant")
    ]
    if not answers:
        raise InputError(
            f"{where}: has no {columns.response!r}, and none of its messages is the assistant's after the user's: say "
            "who answers",
            argument="columns.roles",
        )
    replies = sum(message["role"] == "assistant" for _, message in spoken)
    counts.update(chats=1, replies=replies, answers=len(answers))
    return [
        {
            **rest,
            "context": messages[:idx],
            "response": convert_messages([messages[idx]], name="the response")[0],
        }
        for idx in answers
    ]


def _read_message(turn: Any, columns: Columns) -> Any:
    """Converts a turn, of ShareGPT's form or with a speaker and a text, to a message of OpenAI's form."""
    if not isinstance(turn, Mapping):
        return turn
    role = next((turn[key] for key in ("role", "from", "speaker") if key in turn), None)
    content = next((turn[key] for key in ("content", "value", "text") if key in turn), None)
    role = ROLES.get(role, role) if isinstance(role, str) else role
    if columns.answering:
        answers = not {role, turn.get("role"), turn.get("from"), turn.get("speaker")}.isdisjoint(columns.answering)
        role = "assistant" if answers else role if role in (*SYSTEM, *TOOLS) else "user"
    return {**turn, "role": role, "content": content}


def _read_dialogue(layout: Layout, record: Record, columns: Columns, where: str, counts: Counter[str]) -> list[Record]:
    """A pair for each turn but the first; turns with known speakers are read as a chat."""
    turns = record[layout.needs[0]]
    if are_messages(turns):
        messages = [_read_message(turn, columns) for turn in turns]
        if columns.answering or any(isinstance(turn, Mapping) and turn["role"] == "assistant" for turn in messages):
            return _read_chat(layout, record, columns, where, counts)
        turns = [turn["content"] if isinstance(turn, Mapping) else turn for turn in messages]
    rest = {part: record[part] for part in PARTS[1:] if part in record}
    if not rest.keys().isdisjoint(("response", "responses", "labels")):
        return [{**rest, "context": turns}]
    turns = _read_turns({"context": turns}, columns)
    if len(turns) < 2:
        raise InputError("is a dialogue of one turn: a response is a turn after another one")
    return [{**rest, "context": turns[:idx], "response": turns[idx]} for idx in range(1, len(turns))]


def _read_responses(record: Mapping[str, Any]) -> list[str]:
    """The right responses of a record without labels, one or several; without duplicates."""
    if "response" in record:
        return [read_response(record["response"])]
    texts = list(dict.fromkeys(read_texts(record["responses"], "response")))
    if not texts:
        raise TypeError("the responses are empty")
    return texts


def _check_right(label: Any, *, where: str) -> None:
    if label in (0, "0", "0.0"):
        raise InputError(
            f"{where}: has the label 0, so its response is wrong, and pairs have right ones: leave it out",
            argument="skip_bad_examples",
        )


def _read_turns(record: Record, columns: Columns) -> list[str]:
    value = join_earlier(record, "context")
    if isinstance(value, str):
        turns = [value]
    elif are_messages(value):
        turns = convert_messages(value, name="the context", system=columns.system)
    elif isinstance(value, list) and all(isinstance(turn, str) for turn in value):
        turns = value
    else:
        raise TypeError(f"the context is neither a text nor a list of texts, but {type(value).__name__}")
    turns = [turn.strip() for turn in turns if turn.strip()]
    if not turns:
        raise TypeError("the context is empty")
    return turns


_RIGHT = ("context", "response", "responses")
LAYOUTS = (
    Layout(("context", "response"), _read_pair),
    Layout(("context", "responses"), _read_pair),
    Layout(("context", "candidates", "labels"), _read_pair),
    Layout(("messages",), _read_chat, unless=("context",)),
    Layout(("conversations",), _read_chat, unless=("context",)),
    Layout(("turns",), _read_dialogue, unless=("context",)),
    Layout(("dialog",), _read_dialogue, unless=("context",)),
    Layout(("anchor", "positive"), _read_tuple, unless=_RIGHT, also=("negative",)),
    Layout(("query", "positive"), _read_tuple, unless=_RIGHT, also=("negative",)),
    Layout(("query", "pos"), _read_tuple, unless=_RIGHT, also=("neg",)),
    Layout(("query", "positive_passages"), _read_tuple, unless=_RIGHT, also=("negative_passages",)),
    Layout(("question", "positive_ctxs"), _read_tuple, unless=_RIGHT, also=("hard_negative_ctxs",)),
    Layout(("prompt", "completion"), _read_tuple, unless=_RIGHT),
    Layout(("question", "answer"), _read_tuple, unless=_RIGHT),
)
"""Layouts of pairs, of chats and dialogues, and of tuples: sentence-transformers', BGE's, Tevatron's, DPR's, others."""
LAYOUT_COLUMNS = frozenset(name for layout in LAYOUTS for name in (*layout.needs, *layout.also))
_LISTS = (LAYOUT_COLUMNS | {"negatives"}) - {"response", "anchor", "query", "question", "answer", "completion"}
"""Columns whose cells may hold lists."""
