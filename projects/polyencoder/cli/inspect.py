"""`polyencoder inspect`: what a model attends to when it ranks candidates, in the terminal or on a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyencoder.checks import check_place
from polyencoder.cli.shared.loading import load
from polyencoder.cli.shared.output import say
from polyencoder.data.readers import expand
from polyencoder.errors import InputError
from polyencoder.index import candidates_from
from polyencoder.ranker.inspection import Inspection, inspect_ranking
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import ModelSettings
from polyencoder.settings.fields import Count, Without
from polyencoder.storage.files import check_writable, explaining, write_text

__all__ = ["inspect"]

SHOWN = 3
"""The context vectors of a candidate, and the tokens of a vector, that the terminal shows."""


@settings()
class InspectSettings(Settings):
    """What `polyencoder inspect` ranks, and where it shows how."""

    model: ModelSettings
    context: tuple[str, ...]
    """A turn of the context; repeat it, oldest turn first."""
    candidate: tuple[str, ...] = ()
    """A candidate; repeat it."""
    candidates: Annotated[str | None, Parameter(alias="-c"), Without("candidate")] = None
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
    if settings.html is not None:
        check_place("html", settings.html)
        check_writable(settings.html, argument="html", overwrite=settings.overwrite)
    candidates = list(settings.candidate)
    if settings.candidates is not None:
        candidates = [one.text for one in candidates_from(expand(settings.candidates))]
    if not candidates:
        raise InputError("there is no candidate: give --candidate TEXT or --candidates FILE")
    found = inspect_ranking(load(settings.model), settings.context, candidates, top_k=settings.top_k)
    if settings.html is not None:
        with explaining(settings.html):
            write_text(settings.html, _page(found))
    say(_as_json(found) if settings.as_json else "\n".join(_lines(found)))
    if settings.html is not None:
        say(f"{settings.html}: a page with all weights", err=True)


def _as_json(found: Inspection) -> str:
    candidates = []
    for place, one in enumerate(found.ranked):
        more = {name: scores[place] for name, scores in found.objectives.items()}
        record = {**one._asdict(), "objectives": more, "weights": found.weights[place] if found.weights else None}
        candidates.append({key: value for key, value in record.items() if value not in (None, {})})
    record = {"model": found.title, "context": found.context, "candidates": candidates, "missing": found.missing}
    record |= {"tokens": found.tokens, "token_weights": found.token_weights} if found.tokens else {}
    return json.dumps({key: value for key, value in record.items() if value is not None}, ensure_ascii=False)


def _lines(found: Inspection) -> Iterator[str]:
    yield f"> {_one_line(' / '.join(found.context))}"
    named: dict[int, None] = {}
    for place, one in enumerate(found.ranked):
        likely = "" if one.probability is None else f"  {one.probability:4.0%}"
        yield f"{place + 1:>4}  {one.score:9.4f}{likely}  {_one_line(one.text)}"
        if found.objectives:
            yield f"      {', '.join(f'{name} {scores[place]:.4f}' for name, scores in found.objectives.items())}"
        if found.weights:
            best = _largest(found.weights[place])
            named |= dict.fromkeys(number for number, _ in best)
            yield f"      context vectors: {', '.join(f'{number + 1} {weight:.0%}' for number, weight in best)}"
    if found.missing:
        yield found.missing
    if found.tokens:
        yield "Tokens of these context vectors:"
        for number in sorted(named):
            best = _largest(found.token_weights[number])
            yield f"{number + 1:>4}  {', '.join(f'{found.tokens[i]} {weight:.0%}' for i, weight in best)}"


def _largest(weights: Sequence[float]) -> list[tuple[int, float]]:
    """The places of the largest weights, and these; none that would be shown as 0%."""
    best = sorted(enumerate(weights), key=lambda one: -one[1])[:SHOWN]
    return [one for one in best if one[1] >= 0.005]


def _one_line(text: str) -> str:
    return " ".join(text.split())


STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { padding: .15rem .4rem; text-align: right; font-weight: normal }
td.text { text-align: left; min-width: 16rem }
.heat { background: color-mix(in srgb, #d9480f calc(var(--w) * 100%), transparent) }
"""


def _page(found: Inspection) -> str:
    """One HTML file that fetches nothing: candidates by context vectors, and context vectors by tokens."""
    vectors = range(len(found.weights[0]) if found.weights else 0)
    head = ["score", *(["probability"] if found.ranked[0].probability is not None else []), *found.objectives, ""]
    most = max(max(row) for row in found.weights) if vectors else 0
    rows = []
    for place, one in enumerate(found.ranked):
        cells = [f"<td>{one.score:.3f}</td>"]
        cells += [] if one.probability is None else [f"<td>{one.probability:.0%}</td>"]
        cells += [f"<td>{scores[place]:.3f}</td>" for scores in found.objectives.values()]
        cells += [f'<td class="text">{escape(one.text)}</td>', _heat(found.weights[place], most) if vectors else ""]
        rows.append("".join(cells))
    parts = [
        f"<h1>{escape(found.title)}</h1>",
        *(f"<p>{escape(turn)}</p>" for turn in found.context),
        f"<h2>Candidates{', and how much each context vector counts, in percent' if vectors else ''}</h2>",
        _table([*head, *(str(number + 1) for number in vectors)], rows),
        f"<p>{escape(found.missing)}</p>" if found.missing else "",
    ]
    if found.tokens:
        real = [number for number in vectors if any(found.token_weights[number])]
        most = max(max(found.token_weights[number]) for number in real)
        rows = [
            f'<td class="text">{escape(token)}</td>{_heat([found.token_weights[number][i] for number in real], most)}'
            for i, token in enumerate(found.tokens)
        ]
        parts += ["<h2>Tokens of each context vector, in percent</h2>", _table(["", *(str(n + 1) for n in real)], rows)]
    head_html = f'<meta charset="utf-8"><title>{escape(found.title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head_html}</head><body>{"".join(parts)}</body></html>\n'


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><tr>{names}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _heat(weights: Sequence[float], most: float) -> str:
    """Cells with weights in percent, in a colour that is full at the largest of their table."""
    return "".join(
        f'<td class="heat" style="--w:{one / (most or 1):.3f}">{f"{100 * one:.0f}" if one >= 0.005 else ""}</td>'
        for one in weights
    )
