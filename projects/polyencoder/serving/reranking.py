"""Ranks or scores the documents of a request: `/v1/rerank` and `/score`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from polyencoder.calibration.relevance import ranked, single
from polyencoder.modeling import CrossEncoder, SeparableRanker
from polyencoder.ranker.ranker import Ranker
from polyencoder.serving.batch_forward import candidate, context, pair
from polyencoder.serving.engine import Engine
from polyencoder.serving.model_thread import Job, WorkItem

__all__ = ["Ranking", "Scores", "rank", "score"]


class Ranking(NamedTuple):
    """Documents of a request in order."""

    order: list[tuple[int, float]]
    """(place in the request, relevance 0 to 1), best first."""
    tokens: int
    """Read by the model."""


class Scores(NamedTuple):
    """The relevance of pairs, each by itself, 0 to 1."""

    values: list[float]
    tokens: int


async def rank(engine: Engine, turns: Sequence[str], documents: Sequence[str], *, top_n: int | None = None) -> Ranking:
    """Documents for a context, best first. InputError for what is beyond the limits."""
    documents = engine.texts(documents)
    scores, tokens = await _scores(engine, [(engine.turns(turns), documents)], name="documents")
    return Ranking(ranked(documents, scores[0], engine.ranker.calibration, top_n=top_n), tokens)


async def score(engine: Engine, pairs: Sequence[tuple[str, str]]) -> Scores:
    """The relevance of the second text of each pair for the first. InputError for what is beyond the limits."""
    engine.texts([second for _, second in pairs], name="text_2")
    of_context: dict[str, list[str]] = {}
    for first, second in pairs:
        of_context.setdefault(first, []).append(second)
    asked = [(engine.turns([first], name="text_1"), seconds) for first, seconds in of_context.items()]
    found, tokens = await _scores(engine, asked, name="text_2")
    values = {first: iter(scores.tolist()) for first, scores in zip(of_context, found, strict=True)}
    calibration = engine.ranker.calibration
    return Scores([single(next(values[first]), calibration) for first, _ in pairs], tokens)


async def _scores(
    engine: Engine, asked: Sequence[tuple[Sequence[str], Sequence[str]]], *, name: str
) -> tuple[list[Tensor], int]:
    """For each context and its documents scores [documents], and the number of tokens of all, which is limited.

    Equal documents of a context are read once.
    """
    different = [list(dict.fromkeys(documents)) for _, documents in asked]
    groups = await engine.tokenized(
        lambda: [_items(engine.ranker, turns, texts) for (turns, _), texts in zip(asked, different, strict=True)]
    )
    items = [item for group in groups for item in group]
    tokens = engine.tokens(items, name=name, numbered=len(different[0]) if different == [list(asked[0][1])] else 0)
    model = engine.ranker.model
    ends = [0, *accumulate(map(len, groups))]
    finish = _read if isinstance(model, CrossEncoder) else _dot
    scores = await engine.run(Job(items, finish, payload=(model, [slice(*both) for both in pairwise(ends)])))
    found = []
    for (_, documents), texts, values in zip(asked, different, scores, strict=True):
        of_text = dict(zip(texts, values.tolist(), strict=True))
        found.append(torch.tensor([of_text[one] for one in documents]))
    return found, tokens


def _items(ranker: Ranker, turns: Sequence[str], documents: Sequence[str]) -> list[WorkItem]:
    ids = ranker.text.context_ids(turns)
    candidates = ranker.text.candidate_ids(documents, remember=False)
    if isinstance(ranker.model, CrossEncoder):
        return [pair(ids, one) for one in candidates]
    return [*map(candidate, candidates), context(ids)]


def _read(jobs: Sequence[Job]) -> list[list[Tensor]]:
    """A cross-encoder's scores, of each context of a job."""
    return [[torch.tensor(job.results[group]) for group in job.payload[1]] for job in jobs]


@torch.inference_mode()
def _dot(jobs: Sequence[Job]) -> list[list[Tensor]]:
    """The scores of each context of a job with the vectors of its candidates, the context last among its items."""
    found = []
    for job in jobs:
        model: SeparableRanker = job.payload[0]
        scores = []
        for group in job.payload[1]:
            *vectors, encoded = job.results[group]
            scores.append(model.score(encoded, torch.stack(vectors))[0].float().cpu())
        found.append(scores)
    return found
