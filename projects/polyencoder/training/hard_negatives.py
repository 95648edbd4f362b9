"""Hard-negative mining: wrong candidates that the model ranks high, from an index.

The highest-scoring candidates include unlabelled right answers (false negatives). Two settings avoid them: skipping the
best ranks, as in DPR and RocketQA, and a margin below the label's score.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.index.meta import separable
from polyencoder.ranker.protocol import TextRanker
from polyencoder.scoring import ContextEncoding, search
from polyencoder.settings.training import HardNegatives, parse_ranks
from polyencoder.text import same

__all__ = ["EncodedTexts", "HardNegatives", "Miner", "parse_ranks"]


class SearchHit(Protocol):
    """A hit of a search."""

    @property
    def text(self) -> str: ...

    @property
    def score(self) -> float: ...


class Searchable(Protocol):
    """An index, or `EncodedTexts`."""

    def __len__(self) -> int: ...

    def search(self, contexts: ContextEncoding, *, top_k: int) -> Sequence[Sequence[SearchHit]]:
        """The best candidates of each context, best first."""
        ...


class ScoredText(NamedTuple):
    text: str
    score: float


class EncodedTexts:
    """Texts with their vectors [texts, dim], searched exhaustively in memory. `attention`: as in `score`."""

    def __init__(self, texts: Sequence[str], vectors: Tensor, *, attention: str = "basic") -> None:
        self._texts, self._vectors, self._attention = texts, vectors, attention

    def __len__(self) -> int:
        return len(self._texts)

    def search(self, contexts: ContextEncoding, *, top_k: int) -> list[list[ScoredText]]:
        """The best candidates of each context, best first; equal scores in the order of texts."""
        found = search(contexts, self._vectors, k=top_k, attention=self._attention)
        return [
            [ScoredText(self._texts[row], score) for row, score in zip(rows, scores, strict=True)]
            for rows, scores in zip(found.indices.tolist(), found.scores.tolist(), strict=True)
        ]


class Miner:
    """Mines hard negatives from an index.

    Args:
        ranker: a ranker with vectors; contexts are encoded with its current weights, while the index may be older.
        index: of the candidates.
        settings: which candidates to take.

    Raises:
        InputError: the ranker is a cross-encoder, or the index is empty.
    """

    def __init__(self, ranker: TextRanker, index: Searchable, settings: HardNegatives) -> None:
        separable(ranker)
        if len(index) == 0:
            raise InputError("the index is empty: no candidates to mine")
        self._ranker = ranker
        self._index = index
        self._settings = settings

    @torch.no_grad()
    def __call__(
        self, contexts: ContextEncoding, labels: Sequence[str], *, right: Sequence[Collection[str]] | None = None
    ) -> list[list[str]]:
        """The hard negatives of each context, hardest first: at most `count`.

        Excludes the label, other `right` texts and duplicates, compared up to case, white space and tokenization.
        """
        excluded = [
            set(self._keys([label, *more])) for label, more in zip(labels, right or [[]] * len(labels), strict=True)
        ]
        if len(excluded) != contexts.batch_size:
            raise InputError(f"{contexts.batch_size} contexts, but {len(excluded)} labels")
        ceilings = self._ceilings(contexts, labels)
        settings = self._settings
        first, last = settings.ranks
        top_k = last + max(map(len, excluded))
        while True:  # duplicates in the index may require a larger search
            top_k = min(top_k, len(self._index))
            found = self._index.search(contexts, top_k=top_k)
            wrong = [self._wrong(hits, out) for hits, out in zip(found, excluded, strict=True)]
            if top_k == len(self._index) or all(len(hits) >= last for hits in wrong):
                break
            top_k *= 2
        return [
            [hit.text for hit in hits[first - 1 : last] if hit.score <= ceiling][: settings.count]
            for hits, ceiling in zip(wrong, ceilings, strict=True)
        ]

    def _wrong(self, hits: Sequence[SearchHit], right: Collection[Hashable]) -> list[SearchHit]:
        """The distinct hits that are not among these texts."""
        wrong: dict[Hashable, SearchHit] = {}
        for key, hit in zip(self._keys([hit.text for hit in hits]), hits, strict=True):
            wrong.setdefault(key, hit)
        return [hit for key, hit in wrong.items() if key not in right]

    def _keys(self, texts: Sequence[str]) -> list[Hashable]:
        """Keys for comparing texts up to case, white space and tokenization."""
        return [tuple(ids) for ids in self._ranker.text.candidate_ids([same(text) for text in texts])]

    def _ceilings(self, contexts: ContextEncoding, labels: Sequence[str]) -> list[float]:
        """The maximum score of a negative for each context."""
        margin = self._settings.margin
        if margin is None:
            return [float("inf")] * len(labels)
        vectors = self._ranker.encode_candidates(labels)
        scores = separable(self._ranker).score(contexts, vectors.unsqueeze(1)).squeeze(1)
        return [score - margin for score in scores.tolist()]
