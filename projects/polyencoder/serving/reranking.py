"""Documents of a request, ranked or scored: what `/v1/rerank` and `/score` do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.calibration.relevance import ranked, single
from polyencoder.modeling import CrossEncoder, SeparableRanker
from polyencoder.ranker import Ranker
from polyencoder.serving.engine import Engine
from polyencoder.serving.model_thread import Job, Piece
from polyencoder.serving.passes import candidate, context, pair

__all__ = ["Ranking", "Scores", "rank", "score"]


class Ranking(NamedTuple):
    """Documents of a request in order."""

    order: list[tuple[int, float]]
    """(place in the request, relevance 0 to 1), best first."""
    tokens: int
    """That the model has read."""


class Scores(NamedTuple):
    """The relevance of pairs, each by itself, 0 to 1."""

    values: list[float]
    tokens: int


async def rank(engine: Engine, turns: Sequence[str], documents: Sequence[str], *, top_n: int | None = None) -> Ranking:
    """Documents for a context, best first. InputError for what is beyond the limits."""
    documents = engine.texts(documents)
    scores, tokens = await _scores(engine, engine.turns(turns), documents)
    return Ranking(ranked(documents, scores, engine.ranker.calibration, top_n=top_n), tokens)


async def score(engine: Engine, pairs: Sequence[tuple[str, str]]) -> Scores:
    """The relevance of the second text of each pair for the first. InputError for what is beyond the limits."""
    engine.texts([second for _, second in pairs], name="text_2")
    of_context: dict[str, list[str]] = {}
    for first, second in pairs:
        of_context.setdefault(first, []).append(second)
    answers = await asyncio.gather(
        *(
            _scores(engine, engine.turns([first], name="text_1"), seconds, name="text_2")
            for first, seconds in of_context.items()
        )
    )
    values = {first: iter(found.tolist()) for first, (found, _) in zip(of_context, answers, strict=True)}
    calibration = engine.ranker.calibration
    return Scores([single(next(values[first]), calibration) for first, _ in pairs], sum(n for _, n in answers))


async def _scores(
    engine: Engine, turns: Sequence[str], documents: Sequence[str], *, name: str = "documents"
) -> tuple[Tensor, int]:
    """Scores [documents], and how many tokens were read for them. Equal documents are read once."""
    different = list(dict.fromkeys(documents))
    pieces = await engine.tokenized(lambda: _pieces(engine.ranker, turns, different))
    tokens = engine.tokens(pieces, name=name)
    model = engine.ranker.model
    scores = await engine.run(Job(pieces, _read if isinstance(model, CrossEncoder) else _dot, about=model))
    of_text = dict(zip(different, scores.tolist(), strict=True))
    return torch.tensor([of_text[one] for one in documents]), tokens


def _pieces(ranker: Ranker, turns: Sequence[str], documents: Sequence[str]) -> list[Piece]:
    ids = ranker.text.context_ids(turns)
    candidates = ranker.text.candidate_ids(documents, remember=False)
    if isinstance(ranker.model, CrossEncoder):
        return [pair(ids, one) for one in candidates]
    return [*map(candidate, candidates), context(ids)]


def _read(jobs: Sequence[Job]) -> list[Tensor]:
    """What a cross-encoder has read."""
    return [torch.tensor(job.results) for job in jobs]


@torch.inference_mode()
def _dot(jobs: Sequence[Job]) -> list[Tensor]:
    """A context with the vectors of its candidates."""
    found = []
    for job in jobs:
        model: SeparableRanker = job.about
        *vectors, encoded = job.results
        found.append(model.score(encoded, torch.stack(vectors))[0].float().cpu())
    return found
