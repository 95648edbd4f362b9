"""What is behind a ranking: the context vectors that each candidate attends to, and the tokens behind these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polyencoder.modeling.mode import in_evaluation
from polyencoder.ranker.protocol import Dialogue
from polyencoder.ranker.ranker import Ranked, Ranker
from polyencoder.scoring import attention_weights
from polyencoder.text.dialogue import checked_context

__all__ = ["Inspection", "inspect_ranking"]


@dataclass(frozen=True)
class Inspection:
    """A ranking and how it came about; what a model does not have is empty."""

    title: str
    """The model's architecture."""
    context: list[str]
    """The turns."""
    ranked: list[Ranked]
    """The candidates, best first."""
    has_vectors: bool = True
    """Whether the model encodes contexts and candidates apart."""
    reads_pairs: bool = False
    """Whether scores compare the tokens of both."""
    objectives: dict[str, list[float]] = field(default_factory=dict)
    """Of a model with several: the scores of the ranked candidates, by each objective's name."""
    weights: list[list[float]] = field(default_factory=list)
    """How much each context vector counts in each ranked candidate's score; each row sums to 1."""
    tokens: list[str] = field(default_factory=list)
    """The context as the model reads it."""
    token_weights: list[list[float]] = field(default_factory=list)
    """The weight of each token in each context vector; a row of zeros for a vector that a short context lacks."""

    @property
    def missing(self) -> str | None:
        """Why there are no weights, in a sentence; None where there are."""
        if self.weights:
            return None
        if self.has_vectors and self.reads_pairs:
            return f"A {self.title} compares tokens and turns, too: no weights of context vectors make its scores."
        if self.has_vectors:
            return f"A {self.title} has one context vector: every candidate gives it all its weight."
        return f"A {self.title} reads context and candidate together: it has no context vectors."


@torch.inference_mode()
def inspect_ranking(
    ranker: Ranker, context: Dialogue, candidates: Sequence[str], *, top_k: int | None = None
) -> Inspection:
    """Rank candidates, as `Ranker.rank` does, and look at how the model came to their scores.

    Raises:
        InputError: the context or a candidate is no text, or there is no candidate.
    """
    model, turns = ranker.model, checked_context("context", context)
    ranked = ranker.rank(turns, candidates, top_k=top_k)
    if not model.has_vectors:
        return Inspection(model.title, turns, ranked, has_vectors=False)
    with in_evaluation(model):
        tokens = ranker.text.contexts([turns]).to(ranker.device)
        vectors = ranker.encode_candidates([one.text for one in ranked])
        objectives = model.objectives(model.encode_objectives(tokens))
        scores = {name or "score": _rows(model.score(one, vectors))[0] for name, one in objectives.items()}
        scores = scores if len(scores) > 1 else {}
        found = Inspection(model.title, turns, ranked, reads_pairs=model.reads_pairs, objectives=scores)
        if model.has_one_vector:
            return found
        encoded = model.encode_context(tokens)
        weights = attention_weights(encoded, vectors, attention=model.config.poly_attention)[0]
        behind = model.token_weights(tokens)
    if behind is None:
        return replace(found, weights=_rows(weights))
    if encoded.mask is not None:  # with several heads, one after the other of each vector
        heads = 1 if encoded.keys is None else encoded.keys.heads
        behind = behind * encoded.mask[:, ::heads, None]
    names = [ranker.text.tokenizer.decode([i], skip_special_tokens=False).strip() for i in tokens.sequences()[0]]
    return replace(found, weights=_rows(weights), tokens=names, token_weights=_rows(behind[0]))


def _rows(values: Tensor) -> list[list[float]]:
    rows: list[list[float]] = values.float().cpu().tolist()
    return rows
