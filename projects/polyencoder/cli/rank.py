"""`polyencoder rank`: ranks candidates of a file, or of the command line, for a context."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Annotated, Any

from cyclopts import Parameter

from polyencoder.calibration import AnswerOptions
from polyencoder.cli.shared.loading import load
from polyencoder.cli.shared.output import drop_none, join_white_space, say
from polyencoder.data.readers import detect_format, expand
from polyencoder.errors import InputError
from polyencoder.index import Candidate, candidates_from
from polyencoder.index.candidates import CandidateColumns
from polyencoder.ranked import Ranked
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.validation import Count


@settings()
class RankSettings(Settings):
    """A context, and the candidates to rank for it."""

    model: RankerSettings
    context: tuple[str, ...]
    """A turn of the context; repeat it, oldest turn first."""
    candidates: Annotated[tuple[str, ...], Parameter(alias="-c", consume_multiple=1, allow_leading_hyphen=False)]
    """The candidates: texts, or FILE, GLOB or - for standard input, in the form that polyencoder index reads."""
    columns: CandidateColumns = field(default_factory=CandidateColumns)
    top_k: Annotated[Count, Parameter(alias="-k")] = 10
    """How many are printed, best first."""
    answers: AnswerOptions = field(default_factory=AnswerOptions)
    diversity: float | None = None
    """0 to 1, such as 0.3: candidates that resemble better ones come later."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print one JSON object."""


def rank(*, settings: RankSettings) -> None:
    """Print the best of some candidates for a context, with their scores.

    All candidates are encoded. For many, or many contexts, build an index once: polyencoder index, then search.
    """
    candidates = list(read_candidates(settings.candidates, settings.columns))
    if not candidates:
        raise InputError(f"{', '.join(settings.candidates)}: has no candidates", argument="candidates")
    ranker, context, texts = load(settings.model), list(settings.context), [candidate.text for candidate in candidates]
    ranked = ranker.rank(context, texts, top_k=settings.top_k, diversity=settings.diversity, **vars(settings.answers))
    best_left_out = None if ranked else ranker.rank(context, texts, top_k=1)[0]
    if settings.as_json:
        record: dict[str, Any] = {"context": context, "hits": [_describe_hit(hit, candidates) for hit in ranked]}
        if best_left_out is not None:
            record["best_left_out"] = _describe_hit(best_left_out, candidates)
        say(json.dumps(record, ensure_ascii=False))
        return
    say(f"> {join_white_space(' / '.join(context))}")
    for position, hit in enumerate(ranked, start=1):
        likely = "" if hit.probability is None else f"  {hit.probability:4.0%}"
        say(f"{position:>4}  {hit.score:9.4f}{likely}  {join_white_space(hit.text)}")
    if best_left_out is not None:
        likely = f"{best_left_out.probability:.1%}"
        say(
            f"  no candidate is probable enough; the best is right with {likely}: "
            f"{join_white_space(best_left_out.text)}"
        )


def _describe_hit(hit: Ranked, candidates: list[Candidate]) -> dict[str, Any]:
    return drop_none({"id": candidates[hit.index].id, **hit._asdict()})


def read_candidates(texts: Sequence[str], columns: CandidateColumns) -> Iterator[Candidate]:
    """The candidates of files, and the texts among them: what ends like a file of data, or exists, is a file."""
    for text in texts:
        if text == "-" or os.path.exists(text) or (" " not in text.strip() and detect_format(text) != "txt"):
            yield from candidates_from(expand(text), columns=columns)
        else:
            yield Candidate(None, text)
