"""`BatchForward`: one batch of contexts, candidates, or pairs for a cross-encoder, through a ranker's model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polyencoder.modeling import RankerModel
from polyencoder.modeling.mode import in_evaluation
from polyencoder.ranker.protocol import TextRanker
from polyencoder.scoring import ContextEncoding
from polyencoder.serving.model_thread import WorkItem
from polyencoder.text import token_batches

CONTEXT, CANDIDATE, PAIR = "context", "candidate", "pair"

Ids = Sequence[int]


def context(ids: Ids) -> WorkItem:
    """Becomes a `ContextEncoding` of one context."""
    return WorkItem(CONTEXT, ids, len(ids))


def candidate(ids: Ids) -> WorkItem:
    """Becomes a vector, [dim]."""
    return WorkItem(CANDIDATE, ids, len(ids))


def pair(context: Ids, candidate: Ids) -> WorkItem:
    """Becomes a score, of a cross-encoder."""
    return WorkItem(PAIR, (context, candidate), len(context) + len(candidate))


class BatchForward:
    """Computes items of one kind, sorted by length, at most `max_tokens` tokens at once, padding included.

    The result of an item does not depend on the others: in float32 up to the rounding of another order of sums.
    """

    def __init__(self, ranker: TextRanker, *, max_tokens: int) -> None:
        self._ranker = ranker
        self._max_tokens = max_tokens

    @torch.inference_mode()
    def __call__(self, kind: str, tokens: Sequence[Any]) -> list[Any]:
        """The result of each."""
        model = self._ranker.model
        with in_evaluation(model):
            if kind == PAIR:
                return self._pairs(model, tokens)
            if kind == CANDIDATE and model.token_dim is None:
                read = self._ranker.reader(model, self._ranker.text, tokens, max_tokens=self._max_tokens)
                return [one.vector for one in read]
            return self._in_batches(tokens, partial(self._contexts if kind == CONTEXT else self._candidates, model))

    def _in_batches(self, tokens: Sequence[Ids], encode: Callable[[list[Ids]], Sequence[Any]]) -> list[Any]:
        results: list[Any] = [None] * len(tokens)
        for batch in token_batches([len(ids) for ids in tokens], max_tokens=self._max_tokens):
            for place, result in zip(batch, encode([tokens[i] for i in batch]), strict=True):
                results[place] = result
        return results

    def _contexts(self, model: RankerModel, ids: list[Ids]) -> list[ContextEncoding]:
        encoded = model.encode_context(self._ranker.text.pad(ids).to(self._ranker.device))
        return [encoded.select(row) for row in range(len(ids))]

    def _candidates(self, model: RankerModel, ids: list[Ids]) -> Sequence[Tensor]:
        return model.encode_candidates(self._ranker.text.pad(ids).to(self._ranker.device)).unbind()

    def _pairs(self, model: RankerModel, pairs: Sequence[tuple[Ids, Ids]]) -> list[float]:
        text, device = self._ranker.text, self._ranker.device
        rows: dict[tuple[int, ...], list[int]] = {}  # the pairs of each different context, which is read once
        for place, (ids, _) in enumerate(pairs):
            rows.setdefault(tuple(ids), []).append(place)
        if model.token_dim is not None:
            return self._by_tokens(model, pairs, rows)
        index = torch.full((len(rows), max(map(len, rows.values()))), -1)
        for row, places in enumerate(rows.values()):
            index[row, : len(places)] = torch.tensor(places)
        contexts, candidates = text.pad(list(rows)).to(device), text.pad([ids for _, ids in pairs]).to(device)
        scores = model(contexts, candidates, index.to(device), max_tokens=self._max_tokens).cpu()
        of_pair = torch.empty(len(pairs)).index_put((index[index >= 0],), scores[index >= 0].float())
        values: list[float] = of_pair.tolist()
        return values

    def _by_tokens(
        self, model: RankerModel, pairs: Sequence[tuple[Ids, Ids]], rows: dict[tuple[int, ...], list[int]]
    ) -> list[float]:
        """Like `_pairs`, for a model whose token vectors of candidates are cached."""
        text = self._ranker.text
        contexts = self._in_batches(list(rows), partial(self._contexts, model))
        candidates = [candidate for _, candidate in pairs]
        read = self._ranker.reader(model, text, candidates, max_tokens=self._max_tokens)
        values = [0.0] * len(pairs)
        for encoded, places in zip(contexts, rows.values(), strict=True):
            scores = model.rescore(encoded, [read[place] for place in places])[0].tolist()
            for place, score in zip(places, scores, strict=True):
                values[place] = score
        return values
