"""Reads contexts, and queries with ids, from files: a text per line, or records with the turns of a dialogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from polyencoder.data.cells import join_earlier, parse_list
from polyencoder.data.readers import detect_format, iter_lines, log_system_messages
from polyencoder.data.texts import read_records
from polyencoder.errors import InputError
from polyencoder.text.dialogue import SystemMessages, check_context, count_system_messages

COLUMNS = ("context", "messages", "text")
"""Where records have their context."""


class Question(NamedTuple):
    """A context to answer."""

    turns: list[str]
    id: Any = None
    """The `id` of its record, or `_id`, as in BEIR's files."""


def read_questions(paths: Iterable[str], *, system: SystemMessages = "leave-out") -> Iterator[Question]:
    """Yields the contexts of files; `-` is standard input.

    Records have `context` (or `messages` or `text`): a text, a list of turns or the messages of a chat. Before a text
    may be `context/0`, the turn before it, `context/1`, ..., as in PolyAI's datasets. Each line of a text
    file is a context of one turn or, if it begins with `{`, such a record; empty lines are left out.

    The log has the number of system messages, which are left out unless `system` is `persona`.

    Raises InputError for a file that cannot be read and a record without a context, with its line.
    """
    for path in paths:
        left_out = 0
        for where, record in read_records(path):
            turns, num_left_out = _read_turns(record, where=where, system=system)
            left_out += num_left_out
            id_ = record.get("id", record.get("_id"))
            if isinstance(id_, bytes):
                raise InputError(f"{where}: the id is {id_!r:.40}, bytes, not a text")
            yield Question(turns, id_)
        if left_out:
            log_system_messages(path, left_out)


def read_queries(path: str) -> dict[str, list[str]]:
    """Reads the queries of a file, as turns, by id.

    Records have an `id`, or BEIR's `_id`, and a context as in `read_questions`. A TSV file without these names in its
    first row that is not empty has two columns, the id and the text.

    Raises:
        InputError: a file that cannot be read, a query without an id or a text, or two of one id. It names the line.
    """
    queries: dict[str, list[str]] = {}
    for where, record in _read_queries(path):
        id_ = record.get("id", record.get("_id"))
        if isinstance(id_, int) and not isinstance(id_, bool):
            id_ = str(id_)
        if not isinstance(id_, str) or not id_:
            raise InputError(f"{where}: has no id: a query is {{'id': ..., 'text': ...}}")
        if id_ in queries:
            raise InputError(f"{where}: the id {id_!r} belongs to an earlier query")
        queries[id_], _ = _read_turns(record, where=where, system="leave-out")
    if not queries:
        raise InputError(f"{path}: has no query")
    return queries


def _read_queries(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    def iter_rows() -> Iterator[tuple[int, str]]:
        return ((number, line) for number, line in iter_lines(path) if line.strip())

    if detect_format(path) == "tsv" and not {"id", "_id"} & set(next(iter_rows(), (0, ""))[1].split("\t")):
        for number, line in iter_rows():
            id_, tab, text = line.partition("\t")
            yield f"{path}, line {number}", {"id": id_ if tab else None, "text": text}
    else:
        yield from read_records(path)


def _read_turns(record: dict[str, Any], *, where: str, system: SystemMessages) -> tuple[list[str], int]:
    """The turns of a context, and the number of system messages that are left out."""
    present = [name for name in COLUMNS if name in record]
    name = next((key for key in present if record[key]), present[0] if present else None)  # a table has all columns
    if name is None:
        raise InputError(
            f"{where}: has none of {', '.join(map(repr, COLUMNS))}; it has {', '.join(map(repr, record)) or 'nothing'}"
        )
    try:
        value = join_earlier(record, name)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    value = value if name == "text" else parse_list(value, where=where)
    left_out = count_system_messages(value) if system == "leave-out" else 0
    return check_context(f"{where}: {name!r}", value, system=system), left_out
