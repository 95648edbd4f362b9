"""`polyencoder inspect`: shows what a model attends to when it ranks candidates, in the terminal or as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyencoder.checks import check_place
from polyencoder.cli.shared.loading import load
from polyencoder.cli.shared.output import drop_none, join_white_space, say
from polyencoder.data.readers import expand
from polyencoder.errors import InputError
from polyencoder.index import candidates_from
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Files
from polyencoder.settings.metadata import Without
from polyencoder.storage.files import check_writable, reporting_write_errors, write_text
from polyencoder.validation import Count

if TYPE_CHECKING:
    from polyencoder.inspection import Inspection

NUM_WEIGHTS = 3
"""How many context vectors of a candidate, and tokens of a vector, the terminal shows."""


@settings()
class InspectSettings(Settings):
    """Settings of `polyencoder inspect`: the texts and the output."""

    model: RankerSettings
    context: tuple[str, ...]
    """A turn of the context; repeat it, oldest turn first."""
    candidate: tuple[str, ...] = ()
    """A candidate; repeat it."""
    candidates: Annotated[Files | None, Parameter(alias="-c"), Without("candidate")] = None
    """The candidates: FILE, GLOB or - for standard input, as polyencoder index reads them."""
    top_k: Annotated[Count, Parameter(alias="-k")] = 10
    """How many of the best candidates to show."""
    html: Path | None = None
    """Write a page with all weights as heat maps to this file."""
    overwrite: bool = False
    """Replace --html."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print one JSON object with all weights."""


def inspect(*, settings: InspectSettings) -> None:
    """Show what a model attends to: scores, weights of context vectors, and the tokens behind these."""
    from polyencoder.inspection import inspect_ranking, render_page

    files = [] if settings.candidates is None else expand(settings.candidates)
    if settings.html is not None:
        check_place("html", settings.html)
        check_writable(settings.html, argument="html", overwrite=settings.overwrite, read=files)
    candidates = list(settings.candidate)
    if files:
        candidates = [candidate.text for candidate in candidates_from(files)]
        if not candidates:
            raise InputError(f"{settings.candidates}: no candidate in it")
    if not candidates:
        raise InputError("there is no candidate: give --candidate TEXT or --candidates FILE")
    inspection = inspect_ranking(load(settings.model), settings.context, candidates, top_k=settings.top_k)
    if settings.html is not None:
        with reporting_write_errors(settings.html):
            write_text(settings.html, render_page(inspection), overwrite=settings.overwrite)
    say(_format_json(inspection) if settings.as_json else "\n".join(_format_lines(inspection)))
    if settings.html is not None:
        say(f"{settings.html}: a page with all weights", err=True)


def _format_json(inspection: Inspection) -> str:
    candidates = []
    for row, candidate in enumerate(inspection.ranked):
        objectives = {name: scores[row] for name, scores in inspection.objectives.items()} or None
        weights = inspection.weights[row] if inspection.weights else None
        candidates.append(drop_none({**candidate._asdict(), "objectives": objectives, "weights": weights}))
    record = {
        "model": inspection.title,
        "context": inspection.context,
        "candidates": candidates,
        "missing": inspection.missing,
        "tokens": inspection.tokens or None,
        "token_weights": inspection.token_weights or None,
    }
    return json.dumps(drop_none(record), ensure_ascii=False)


def _format_lines(inspection: Inspection) -> Iterator[str]:
    yield f"> {join_white_space(' / '.join(inspection.context))}"
    named: dict[int, None] = {}
    for row, candidate in enumerate(inspection.ranked):
        likely = "" if candidate.probability is None else f"  {candidate.probability:4.0%}"
        yield f"{row + 1:>4}  {candidate.score:9.4f}{likely}  {join_white_space(candidate.text)}"
        if inspection.objectives:
            yield f"      {', '.join(f'{name} {scores[row]:.4f}' for name, scores in inspection.objectives.items())}"
        if inspection.weights:
            best = _select_largest(inspection.weights[row])
            named |= dict.fromkeys(number for number, _ in best)
            yield f"      context vectors: {', '.join(f'{number + 1} {weight:.0%}' for number, weight in best)}"
    if inspection.missing:
        yield inspection.missing
    if inspection.tokens:
        yield "Tokens of these context vectors:"
        for number in sorted(named):
            best = _select_largest(inspection.token_weights[number])
            yield f"{number + 1:>4}  {', '.join(f'{inspection.tokens[i]} {weight:.0%}' for i, weight in best)}"


def _select_largest(weights: Sequence[float]) -> list[tuple[int, float]]:
    best = sorted(enumerate(weights), key=lambda item: -item[1])[:NUM_WEIGHTS]
    return [pair for pair in best if pair[1] >= 0.005]
