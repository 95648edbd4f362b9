"""Reads pre-training documents: conversations (of turns) and articles (of sentences)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import regex

from polyencoder.checks import explain_unencodable
from polyencoder.data.cells import find_earlier_columns, parse_list
from polyencoder.data.readers import DataFile, OnBad, detect_format, iter_records, raise_it
from polyencoder.data.ubuntu import CONTEXT, is_ubuntu, parse_ubuntu_turns
from polyencoder.errors import InputError
from polyencoder.text.dialogue import are_messages, convert_messages

LONGEST = 512  # maximum units of an article: longer ones are split, with an overlap of one unit
# The columns of DSTC7's Ubuntu track
MESSAGES, ANSWERS = "messages-so-far", "options-for-correct-answers"

# Closing quotes and brackets belong to the sentence.
_SENTENCE_END = regex.compile(r"(?<=[.!?\u2026][\"'\p{Pe}\p{Pf}]*)\s+")


@dataclass(frozen=True)
class CorpusDocument:
    """A conversation or an article. `kind` "pair": a context whose last unit alone is a response."""

    units: Sequence[str]
    where: str
    """Its file and line."""
    kind: Literal["conversation", "pair", "text"]

    @property
    def responses(self) -> range:
        """The positions of units that follow a context; empty for a single unit."""
        first = len(self.units) - 1 if self.kind == "pair" else 1
        return range(max(1, first), len(self.units))

    def get_context(self, position: int, *, history: int) -> Sequence[str]:
        """The units before a unit: at most `history` turns of a conversation, one sentence of an article."""
        return self.units[max(0, position - (1 if self.kind == "text" else history)) : position]

    def is_held_out(self, share: float) -> bool:
        """Whether it belongs to the held-out share, by a hash of its text."""
        key = self.units[:1] if self.kind == "pair" else self.units[:2]  # pairs of one conversation begin alike
        return zlib.crc32("\n".join(key).encode()) < share * 2**32


def read_documents(file: str | DataFile, *, bad: OnBad = raise_it) -> Iterator[CorpusDocument]:
    r"""Yields the documents of a file. The columns of a record decide its kind:

    - `turns`, a list of texts, `messages`, those of a chat, or `dialog`, as `parlai convert_to_json` writes it: a
      conversation;
    - `context`, a text, a list of turns or messages, and `response`: a pair; before `context` may be `context/0`, the
      turn before it, `context/1`, ... as in PolyAI's datasets;
    - `sentences`, a list of texts, or `text`, an article that is cut into sentences;
    - the rows of Ubuntu's CSV files: a pair, unless the response is a wrong one; DSTC7's dialogues: conversations;
    - in a text file: a line with tabs is an article, whose sentences the tabs separate; each other line is a sentence,
      and an empty line ends their article.

    Empty units are skipped.

    Raises:
        InputError: a file that cannot be read; and, unless `bad` does something else with it, a record that is none of
            these.
    """
    if detect_format(file) == "txt":
        yield from _read_articles(file, bad)
        return
    for where, record in iter_records(file, bad=bad):
        try:
            document = _parse_document(record, where)
        except InputError as error:
            bad(error)
            continue
        if document is not None:
            yield document


def _parse_document(record: dict[str, Any], where: str) -> CorpusDocument | None:
    """A record's document; None for an Ubuntu row with a wrong or empty response."""
    if "turns" in record:
        return CorpusDocument(_parse_units(record, "turns", where), where, "conversation")
    if "dialog" in record:
        return CorpusDocument(_clean(_convert_dialog(record["dialog"]), "dialog", where), where, "conversation")
    if are_messages(parse_list(record.get("messages"), where=where)):
        return CorpusDocument(_parse_units(record, "messages", where), where, "conversation")
    if "context" in record and "response" in record:
        names = (*find_earlier_columns(record), "context")
        context = [unit for name in names for unit in _parse_units(record, name, where)]
        response = _parse_units(record, "response", where)
        if not response:
            raise InputError(f"{where}: the response is empty")
        return CorpusDocument([*context, *response], where, "pair")
    if "sentences" in record:
        return CorpusDocument(_parse_units(record, "sentences", where), where, "text")
    if "text" in record:
        units = _parse_units(record, "text", where, lines=True)
        return CorpusDocument([part for unit in units for part in _SENTENCE_END.split(unit) if part], where, "text")
    if MESSAGES in record:
        return CorpusDocument(_clean(_parse_dstc7_turns(record, where), MESSAGES, where), where, "conversation")
    if is_ubuntu(record):
        turns = parse_ubuntu_turns(record, where)
        return CorpusDocument(_clean(turns, CONTEXT, where), where, "pair") if turns and turns[-1] else None
    raise InputError(
        f"{where}: has neither 'turns' nor 'dialog' nor 'context' and 'response' nor 'sentences' nor 'text'; it has "
        f"{', '.join(map(repr, record)) or 'nothing'}"
    )


def _convert_dialog(exchanges: Any) -> Any:
    """The lines of ParlAI's exchanges, each a list of messages with a `text`; other values as they are."""
    try:
        return [line for exchange in exchanges for message in exchange for line in message["text"].split("\n")]
    except (KeyError, TypeError, AttributeError):
        return exchanges


def _parse_dstc7_turns(record: dict[str, Any], where: str) -> list[str]:
    """The messages of a dialogue, and the right answer, if there. InputError: they are not as in DSTC7's files."""
    try:
        turns = [message["utterance"] for message in (*record[MESSAGES], *record.get(ANSWERS, ())[:1])]
        if not all(isinstance(turn, str) for turn in turns):
            raise TypeError("an utterance that is no text")
        return turns
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: not a dialogue of DSTC7's subtask 1 ({type(error).__name__}: {error})") from None


def _parse_units(record: dict[str, Any], name: str, where: str, *, lines: bool = False) -> list[str]:
    """The non-empty texts of a column, each on one line."""
    value = record[name] if name in ("response", "text") else parse_list(record[name], where=where)
    if are_messages(value):
        value = convert_messages(value, name=f"{where}: {name!r}")
    return _clean((value.split("\n") if lines else [value]) if isinstance(value, str) else value, name, where)


def _clean(values: Any, name: str, where: str) -> list[str]:
    """The non-empty texts, each on one line."""
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise InputError(f"{where}: {name!r} is neither a text nor a list of texts, but {type(values).__name__}")
    if problem := next(filter(None, map(explain_unencodable, values)), None):
        raise InputError(f"{where}: {problem}")
    return [unit for text in values if (unit := " ".join(text.split()))]


def _read_articles(file: str | DataFile, bad: OnBad) -> Iterator[CorpusDocument]:
    """The articles of a text file."""
    units: list[str] = []
    start = ""
    for where, record in iter_records(file, bad=bad):
        line = record["text"]
        sentences = [unit for text in line.split("\t") if (unit := " ".join(text.split()))]
        if units and (len(sentences) != 1 or len(units) == LONGEST):
            yield CorpusDocument(units, start, "text")
            units = units[-1:] if len(sentences) == 1 else []
        if len(sentences) > 1:
            yield CorpusDocument(sentences, where, "text")
        elif sentences:
            start = start if units else where
            units.append(sentences[0])
    if units:
        yield CorpusDocument(units, start, "text")
