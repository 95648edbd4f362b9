"""Explains a ranking: which context vectors each candidate attends to, and which tokens these do; also as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape

import torch
from torch import Tensor

from polyencoder.encoding.protocol import Dialogue
from polyencoder.modeling.mode import in_evaluation
from polyencoder.ranked import Ranked
from polyencoder.ranker import Ranker
from polyencoder.scoring import compute_attention_weights
from polyencoder.text.dialogue import check_context


@dataclass(frozen=True)
class Inspection:
    """A ranking with its attention weights; fields that the architecture lacks are empty."""

    title: str
    """The model's architecture."""
    context: list[str]
    """The turns."""
    ranked: list[Ranked]
    """The candidates, best first."""
    missing: str | None = None
    """Why there are no weights; None if there are."""
    objectives: dict[str, list[float]] = field(default_factory=dict)
    """Scores of the ranked candidates by each objective's name, for a model with several objectives."""
    weights: list[list[float]] = field(default_factory=list)
    """[candidates, vectors]: the weight of each context vector in each candidate's score; rows sum to 1."""
    tokens: list[str] = field(default_factory=list)
    """The context as the model reads it."""
    token_weights: list[list[float]] = field(default_factory=list)
    """[vectors, tokens]: the weight of each token in each context vector; zeros for a short context's spare vectors."""


@torch.inference_mode()
def inspect_ranking(
    ranker: Ranker, context: Dialogue, candidates: Sequence[str], *, top_k: int | None = None
) -> Inspection:
    """Ranks candidates, with the attention weights behind their scores. InputError as `Ranker.rank`."""
    model, turns = ranker.model, check_context("context", context)
    ranked = ranker.rank(turns, candidates, top_k=top_k)
    if not model.has_vectors:
        missing = f"A {model.title} reads context and candidate together: it has no context vectors."
        return Inspection(model.title, turns, ranked, missing)
    with in_evaluation(model):
        tokens = ranker.text.batch_contexts([turns]).to(ranker.device)
        vectors = torch.from_numpy(ranker.encode_candidates([entry.text for entry in ranked])).to(ranker.device)
        objectives = model.split_objectives(model.encode_objectives(tokens))
        scores = {name or "score": _to_rows(model.score(encoding, vectors))[0] for name, encoding in objectives.items()}
        scores = scores if len(scores) > 1 else {}
        inspection = Inspection(model.title, turns, ranked, objectives=scores)
        if model.reads_pairs:
            missing = f"A {model.title} also compares tokens and turns: its scores are not sums over context vectors."
            return replace(inspection, missing=missing)
        if model.has_one_vector:
            missing = f"A {model.title} has one context vector: its weight is 1 for every candidate."
            return replace(inspection, missing=missing)
        encoded = model.encode_context(tokens)
        weights = compute_attention_weights(encoded, vectors, attention=model.config.poly_attention)[0]
        behind = model.token_weights(tokens)
    if behind is None:
        return replace(inspection, weights=_to_rows(weights))
    if encoded.mask is not None:  # with several heads, a vector's heads are consecutive
        heads = 1 if encoded.keys is None else encoded.keys.heads
        behind = behind * encoded.mask[:, ::heads, None]
    names = [ranker.text.tokenizer.decode([i], skip_special_tokens=False).strip() for i in tokens.list_sequences()[0]]
    return replace(inspection, weights=_to_rows(weights), tokens=names, token_weights=_to_rows(behind[0]))


def _to_rows(values: Tensor) -> list[list[float]]:
    rows: list[list[float]] = values.float().cpu().tolist()
    return rows


STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; overflow-wrap: anywhere }
table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { padding: .15rem .4rem; text-align: right; vertical-align: top; overflow-wrap: normal }
th { text-align: left; font-weight: normal; opacity: .8 }
td.text { text-align: left; min-width: min(16rem, 20vw); overflow-wrap: anywhere }
svg { max-width: 100%; height: auto; background: white }
"""


def render_page(inspection: Inspection) -> str:
    """Renders a self-contained HTML file: candidates by context vectors, and context vectors by tokens."""
    vectors = range(len(inspection.weights[0]) if inspection.weights else 0)
    has_probabilities = inspection.ranked[0].probability is not None
    head = ["score", *(["probability"] if has_probabilities else []), *inspection.objectives, ""]
    largest = max(max(row) for row in inspection.weights) if vectors else 0
    rows = []
    for row, candidate in enumerate(inspection.ranked):
        cells = [f"<td>{candidate.score:.3f}</td>"]
        cells += [] if candidate.probability is None else [f"<td>{candidate.probability:.0%}</td>"]
        cells += [f"<td>{scores[row]:.3f}</td>" for scores in inspection.objectives.values()]
        cells.append(f'<td class="text">{escape(candidate.text)}</td>')
        rows.append("".join(cells) + (_render_heat(inspection.weights[row], largest) if vectors else ""))
    parts = [
        f"<h1>{escape(inspection.title)}</h1>",
        *(f"<p>{escape(turn)}</p>" for turn in inspection.context),
        f"<h2>Candidates{', and how much each context vector counts, in percent' if vectors else ''}</h2>",
        _render_table([*head, *(str(number + 1) for number in vectors)], rows),
        f"<p>{escape(inspection.missing)}</p>" if inspection.missing else "",
    ]
    if inspection.tokens:
        real = [number for number in vectors if any(inspection.token_weights[number])]
        largest = max(max(inspection.token_weights[number]) for number in real)
        rows = [
            f'<td class="text">{escape(token)}</td>{_render_heat(weights, largest)}'
            for token, *weights in zip(inspection.tokens, *(inspection.token_weights[n] for n in real), strict=True)
        ]
        parts += [
            "<h2>Tokens of each context vector, in percent</h2>",
            _render_table(["", *(str(n + 1) for n in real)], rows),
        ]
    page_head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(inspection.title)}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{page_head}</head><body><main>{"".join(parts)}</main></body></html>\n'


def _render_heat(weights: Sequence[float], largest: float) -> str:
    """Renders cells with weights in percent, coloured relative to the largest of their table."""
    cells = []
    for weight in weights:
        colour = f"rgb(217 72 15 / {weight / (largest or 1):.3f})"
        number = f"{100 * weight:.0f}" if weight >= 0.005 else ""
        cells.append(f'<td class="heat" style="background:{colour}">{number}</td>')
    return "".join(cells)


def _render_table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table of cells, `<td>...</td>`, with escaped names of columns, which the tab key reaches to scroll it."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{row}</tr>" for row in (*filter(None, [names]), *rows))
    return f'<table tabindex="0">{lines}</table>'
