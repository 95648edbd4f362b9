"""`polyencoder chat`: a dialogue in the terminal with the candidates of an index, or of files and texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from typing import Annotated

from cyclopts import Parameter

from polyencoder.calibration import AnswerOptions
from polyencoder.cli.rank import read_candidates
from polyencoder.cli.shared.loading import check_index, load
from polyencoder.cli.shared.output import join_white_space, say
from polyencoder.errors import UsageError
from polyencoder.index.candidates import CandidateColumns
from polyencoder.serving.config import NO_ANSWER
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import OneIndex
from polyencoder.settings.metadata import Without


@settings()
class ChatSettings(Settings):
    """A ranker, the candidates for its replies, and when it has none."""

    model: RankerSettings
    index: OneIndex | None = None
    """The index of the candidates: its folder, or its address (milvus:... or postgres://...)."""
    candidates: Annotated[
        tuple[str, ...], Parameter(alias="-c", consume_multiple=1, allow_leading_hyphen=False), Without("index")
    ] = ()
    """In place of an index the candidates: texts, or FILE or GLOB, in the form that polyencoder index reads."""
    columns: CandidateColumns = field(default_factory=CandidateColumns)
    answers: AnswerOptions = field(default_factory=AnswerOptions)
    no_answer: str = NO_ANSWER
    """The reply if no candidate is likely enough."""


def chat(*, settings: ChatSettings) -> None:
    """Reply to each line that is typed, in view of the dialogue before it, as `serve` does. Ctrl-D ends it.

    Without --min-probability and --max-risk the first promise of the calibration for the index, if any, decides whether
    there is an answer.
    """
    from polyencoder.index.open import make_index, open_index
    from polyencoder.index.searcher import Searcher

    if settings.index is None and not settings.candidates:
        raise UsageError("chat requires --index, or --candidates")
    if "-" in settings.candidates:
        raise UsageError("--candidates -: standard input has the dialogue; give a file")
    candidates = list(read_candidates(settings.candidates, settings.columns))
    check_index(settings.index)
    ranker = load(settings.model)
    opened = make_index(candidates, None, ranker) if settings.index is None else open_index(settings.index, ranker)
    with opened as index:
        answers = settings.answers
        if settings.index is not None:  # a promise is for one index
            answers = answers.or_promised(ranker.calibration, index=index.address)
        searcher = Searcher(ranker, index, **vars(answers))
        turns: list[str] = []
        for line in _read_lines():
            turns.append(line)
            hits = searcher([turns])[0]
            say(join_white_space(hits[0].text) if hits else settings.no_answer)
            turns += [hit.text for hit in hits[:1]]


def _read_lines() -> Iterator[str]:
    prompt = "> " if sys.stdin.isatty() else ""
    with suppress(EOFError):
        while True:
            if line := input(prompt).strip():
                yield line
