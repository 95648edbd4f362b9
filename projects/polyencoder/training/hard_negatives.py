"""Hard-negative mining: wrong candidates that the model ranks high, from an index.

The highest-scoring candidates include unlabelled right answers (false negatives). Settings avoid them: skipping the
best ranks, as in DPR and RocketQA, and a largest similarity to right answers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.folder.words import Words
from polyencoder.index.hits import Hit
from polyencoder.index.meta import separable
from polyencoder.index.words import query_words
from polyencoder.scoring import ContextEncoding, best, score
from polyencoder.settings.training import HardNegatives
from polyencoder.text import same

_SCORES = 1 << 26  # in memory at once


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
        step = max(1, _SCORES // len(self._texts))
        hits: list[list[ScoredText]] = []
        for i in range(0, contexts.batch_size, step):
            scores = score(contexts.select(slice(i, i + step)), self._vectors, attention=self._attention)
            for values, rows in zip(*(part.tolist() for part in best(scores, top_k)), strict=True):
                hits.append([ScoredText(self._texts[row], value) for row, value in zip(rows, values, strict=True)])
        return hits


SearchHit = Hit | ScoredText
Find = Callable[[int], Sequence[Sequence[SearchHit]]]
"""top_k -> the best candidates of each context, best first."""


class Miner:
    """Mines hard negatives from an index, which may be older than the weights of `ranker`, which encodes contexts.

    InputError if the ranker is a cross-encoder, or the index is empty.
    """

    def __init__(self, ranker: TextRanker, index: Index | EncodedTexts, settings: HardNegatives) -> None:
        self._model = separable(ranker)
        if len(index) == 0:
            raise InputError("the index is empty: no candidates to mine")
        self._ranker, self._index = ranker, index
        self._choice = Choice(ranker, settings)

    @torch.no_grad()
    def __call__(
        self, contexts: Any, labels: Sequence[str], *, right: Sequence[Collection[str]] | None = None
    ) -> list[list[str]]:
        """The hard negatives of each context, hardest first: at most `count`. The contexts are encoded.

        Excludes the label, other `right` texts and duplicates, compared up to case, white space and tokenization.
        """

        def find(k: int) -> Sequence[Sequence[SearchHit]]:
            return self._index.search(contexts, top_k=k)

        return self._choice(find, labels, size=len(self._index), right=right)


class Choice:
    """Chooses the negatives among the candidates that are found, as the settings say."""

    def __init__(self, ranker: TextRanker, settings: HardNegatives) -> None:
        self._ranker, self._settings = ranker, settings

    def __call__(
        self,
        find: Find,
        labels: Sequence[str],
        *,
        size: int,
        right: Sequence[Collection[str]] | None,
    ) -> list[list[str]]:
        """The negatives of each label, from the candidates that `find` gives, best first, of `size` in all."""
        if not labels:
            return []
        settings, (first, last) = self._settings, self._settings.ranks
        positives = [[label, *more] for label, more in zip(labels, right or [[]] * len(labels), strict=True)]
        excluded = [set(self._keys(texts)) for texts in positives]
        top_k = last + max(map(len, excluded))
        while True:  # duplicates may require a larger search, unless there is nothing more to find
            top_k = min(top_k, size)
            results = find(top_k)
            wrong = [self._wrong(hits, out) for hits, out in zip(results, excluded, strict=True)]
            enough = (len(texts) >= last or len(hits) < top_k for texts, hits in zip(wrong, results, strict=True))
            if top_k == size or all(enough):
                break
            top_k *= 2
        texts = [[hit.text for hit in hits[first - 1 : last]] for hits in wrong]
        if settings.max_similarity is not None:
            return self._dissimilar(texts, positives)
        return [some[: settings.count] for some in texts]

    def _dissimilar(self, texts: list[list[str]], positives: Sequence[Sequence[str]]) -> list[list[str]]:
        """The first texts of each list that are no near-duplicates of its positives; encodes no more than it needs."""
        count, limit = self._settings.count, self._settings.max_similarity
        assert limit is not None
        chosen: list[list[str]] = [[] for _ in texts]
        waiting = {row: iter(candidates) for row, candidates in enumerate(texts)}
        vectors: dict[str, Tensor] = {}
        while waiting:
            taken = {row: [*islice(rest, count - len(chosen[row]))] for row, rest in waiting.items()}
            new = [
                text
                for row, candidates in taken.items()
                for text in (*candidates, *positives[row])
                if text not in vectors
            ]
            if new := list(dict.fromkeys(new)):
                encoded = torch.from_numpy(self._ranker.encode_candidates(new))
                vectors |= zip(new, normalize(encoded, dim=1), strict=True)
            for row, candidates in taken.items():
                near = torch.stack([vectors[text] for text in positives[row]])
                chosen[row] += [text for text in candidates if float((near @ vectors[text]).max()) <= limit]
            waiting = {
                row: waiting[row] for row, candidates in taken.items() if candidates and len(chosen[row]) < count
            }
        return chosen

    def _wrong(self, hits: Sequence[SearchHit], right: Collection[Hashable]) -> list[SearchHit]:
        """The distinct hits that are not among these texts."""
        wrong: dict[Hashable, SearchHit] = {}
        for key, hit in zip(self._keys([hit.text for hit in hits]), hits, strict=True):
            wrong.setdefault(key, hit)
        return [hit for key, hit in wrong.items() if key not in right]

    def _keys(self, texts: Sequence[str]) -> list[Hashable]:
        return [tuple(ids) for ids in self._ranker.text.candidate_ids([same(text) for text in texts])]


class WordMiner:
    """Mines hard negatives by BM25 among candidates in memory.

    A ranker of any architecture encodes candidates, if there is a largest similarity. InputError if there are no texts,
    or the ranker has no vectors for that; ConfigError if this Python's SQLite has no FTS5.
    """

    def __init__(self, ranker: TextRanker, texts: Sequence[str], settings: HardNegatives) -> None:
        if not texts:
            raise InputError("there are no candidates to mine")
        if settings.max_similarity is not None and not ranker.model.has_vectors:
            raise InputError(
                f"a {ranker.model.title} has no vectors, which a largest similarity compares",
                argument="max_positive_similarity",
            )
        self._texts = texts
        self._choice = Choice(ranker, settings)
        self._words = Words(sqlite3.connect(":memory:", isolation_level=None).execute)
        self._words.create()
        self._words.fill(enumerate(texts))

    @torch.no_grad()
    def __call__(
        self, contexts: Sequence[Context], labels: Sequence[str], *, right: Sequence[Collection[str]] | None = None
    ) -> list[list[str]]:
        """The hard negatives of each context, in BM25's order: at most `count`. As `Miner`, without the vectors."""
        turns = [[one] if isinstance(one, str) else list(one) for one in contexts]

        def find(k: int) -> list[list[ScoredText]]:
            results = (self._words.find(query_words(one), k=k, allowed=None) for one in turns)
            return [[ScoredText(self._texts[row], score) for row, score in hits] for hits in results]

        return self._choice(find, labels, size=len(self._texts), right=right)
