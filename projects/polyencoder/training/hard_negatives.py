"""Hard-negative mining: wrong candidates that the current model ranks high, found in an index.

Some of what scores highest is right, though no one has labelled it. Two settings leave it alone: the best ranks can be
passed over, as in DPR's and RocketQA's training, and so can whatever comes near the label's own score or above it.
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


class Found(Protocol):
    """A candidate that a search has found."""

    @property
    def text(self) -> str: ...

    @property
    def score(self) -> float: ...


class Searchable(Protocol):
    """Encoded candidates that can be searched: an index, or `EncodedTexts`."""

    def __len__(self) -> int: ...

    def search(self, contexts: ContextEncoding, *, top_k: int) -> Sequence[Sequence[Found]]:
        """The best candidates of each context, best first."""
        ...


class ScoredText(NamedTuple):
    text: str
    score: float


class EncodedTexts:
    """Texts with their vectors [texts, dim], searched in memory by scoring all. `attention`: as of `score`."""

    def __init__(self, texts: Sequence[str], vectors: Tensor, *, attention: str = "basic") -> None:
        self._texts, self._vectors, self._attention = texts, vectors, attention

    def __len__(self) -> int:
        return len(self._texts)

    def search(self, contexts: ContextEncoding, *, top_k: int) -> list[list[ScoredText]]:
        """The best candidates of each context, best first; of equal scores the earlier text."""
        found = search(contexts, self._vectors, k=top_k, attention=self._attention)
        return [
            [ScoredText(self._texts[row], score) for row, score in zip(rows, scores, strict=True)]
            for rows, scores in zip(found.indices.tolist(), found.scores.tolist(), strict=True)
        ]


class Miner:
    """Mines hard negatives from an index.

    Args:
        ranker: the bi- or poly-encoder that is trained. If it has been trained since the index was made, contexts of
            its present weights are compared with candidates of its earlier ones.
        index: of the candidates.
        settings: which are taken.

    Raises:
        InputError: the ranker is a cross-encoder, or the index is empty.
    """

    def __init__(self, ranker: TextRanker, index: Searchable, settings: HardNegatives) -> None:
        separable(ranker)
        if len(index) == 0:
            raise InputError("the index is empty: there is no candidate to mine")
        self._ranker = ranker
        self._index = index
        self._settings = settings

    @torch.no_grad()
    def __call__(
        self, contexts: ContextEncoding, labels: Sequence[str], *, right: Sequence[Collection[str]] | None = None
    ) -> list[list[str]]:
        """The hard negatives of each context, hardest first: `count`, or as many as there are.

        None of them equals the label, nor one of the texts that are `right` as well for the context, up to case, white
        space and whatever else the ranker's tokens do not show; and none comes twice.
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
        while True:  # an index may have a text several times, so that more must be asked for
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

    def _wrong(self, hits: Sequence[Found], right: Collection[Hashable]) -> list[Found]:
        """The hits that are none of these texts, each different text once, where it is best."""
        wrong: dict[Hashable, Found] = {}
        for key, hit in zip(self._keys([hit.text for hit in hits]), hits, strict=True):
            wrong.setdefault(key, hit)
        return [hit for key, hit in wrong.items() if key not in right]

    def _keys(self, texts: Sequence[str]) -> list[Hashable]:
        """Equal for texts that are one answer: up to case and white space, and to what their tokens show."""
        return [tuple(ids) for ids in self._ranker.text.candidate_ids([same(text) for text in texts])]

    def _ceilings(self, contexts: ContextEncoding, labels: Sequence[str]) -> list[float]:
        """The most that a negative of each context may score."""
        margin = self._settings.margin
        if margin is None:
            return [float("inf")] * len(labels)
        vectors = self._ranker.encode_candidates(labels)
        scores = separable(self._ranker).score(contexts, vectors.unsqueeze(1)).squeeze(1)
        return [score - margin for score in scores.tolist()]
