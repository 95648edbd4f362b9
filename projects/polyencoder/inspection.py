"""Explains a ranking: which context vectors each candidate attends to, and which tokens these attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polyencoder.encoding.protocol import Dialogue
from polyencoder.modeling.mode import in_evaluation
from polyencoder.ranked import Ranked
from polyencoder.ranker import Ranker
from polyencoder.scoring import attention_weights
from polyencoder.text.dialogue import checked_context


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
    """Ranks candidates as `Ranker.rank` does, with the attention weights behind their scores.

    Raises:
        InputError: the context or a candidate is not a text, or no candidates.
    """
    model, turns = ranker.model, checked_context("context", context)
    ranked = ranker.rank(turns, candidates, top_k=top_k)
    if not model.has_vectors:
        missing = f"A {model.title} reads context and candidate together: it has no context vectors."
        return Inspection(model.title, turns, ranked, missing)
    with in_evaluation(model):
        tokens = ranker.text.contexts([turns]).to(ranker.device)
        vectors = torch.from_numpy(ranker.encode_candidates([one.text for one in ranked])).to(ranker.device)
        objectives = model.objectives(model.encode_objectives(tokens))
        scores = {name or "score": _rows(model.score(one, vectors))[0] for name, one in objectives.items()}
        scores = scores if len(scores) > 1 else {}
        found = Inspection(model.title, turns, ranked, objectives=scores)
        if model.reads_pairs:
            missing = f"A {model.title} also compares tokens and turns: its scores are not sums over context vectors."
            return replace(found, missing=missing)
        if model.has_one_vector:
            missing = f"A {model.title} has one context vector: its weight is 1 for every candidate."
            return replace(found, missing=missing)
        encoded = model.encode_context(tokens)
        weights = attention_weights(encoded, vectors, attention=model.config.poly_attention)[0]
        behind = model.token_weights(tokens)
    if behind is None:
        return replace(found, weights=_rows(weights))
    if encoded.mask is not None:  # with several heads, a vector's heads are consecutive
        heads = 1 if encoded.keys is None else encoded.keys.heads
        behind = behind * encoded.mask[:, ::heads, None]
    names = [ranker.text.tokenizer.decode([i], skip_special_tokens=False).strip() for i in tokens.sequences()[0]]
    return replace(found, weights=_rows(weights), tokens=names, token_weights=_rows(behind[0]))


def _rows(values: Tensor) -> list[list[float]]:
    rows: list[list[float]] = values.float().cpu().tolist()
    return rows
