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
from polyencoder.index.meta import get_separable_model
from polyencoder.index.words import split_query_words
from polyencoder.scoring import ContextEncoding, score, select_best
from polyencoder.settings.training import HardNegatives
from polyencoder.text.context import normalize_text

_SCORES = 1 << 26  # in memory at once


class ScoredText(NamedTuple):
    text: str
    score: float


SearchHit = Hit | ScoredText
Find = Callable[[Any, int], Sequence[Sequence[SearchHit]]]
"""(contexts, top_k) -> the best candidates of each context, best first."""


def build_exhaustive_search(texts: Sequence[str], vectors: Tensor, *, attention: str = "basic") -> Find:
    """Searches texts in memory by their vectors [texts, dim]; equal scores are in the order of texts."""

    def find(contexts: ContextEncoding, top_k: int) -> list[list[ScoredText]]:
        step = max(1, _SCORES // len(texts))
        hits: list[list[ScoredText]] = []
        for i in range(0, contexts.batch_size, step):
            scores = score(contexts.select(slice(i, i + step)), vectors, attention=attention)
            for values, rows in zip(*(part.tolist() for part in select_best(scores, top_k)), strict=True):
                hits.append([ScoredText(texts[row], value) for row, value in zip(rows, values, strict=True)])
        return hits

    return find


class Miner:
    """Mines hard negatives among `size` candidates; `find` returns the best. InputError if there are none.

    The ranker tokenizes candidates, and encodes them if there is a largest similarity.
    """

    def __init__(self, ranker: TextRanker, find: Find, settings: HardNegatives, *, size: int) -> None:
        if size == 0:
            raise InputError("there are no candidates to mine")
        self._ranker, self._find, self._settings, self._size = ranker, find, settings, size

    @classmethod
    def from_index(cls, ranker: TextRanker, index: Index, settings: HardNegatives) -> Miner:
        """Mines in an index, for encoded contexts. InputError: a cross-encoder."""
        get_separable_model(ranker)
        return cls(ranker, lambda contexts, k: index.search(contexts, top_k=k), settings, size=len(index))

    @classmethod
    def from_texts(cls, ranker: TextRanker, texts: Sequence[str], settings: HardNegatives) -> Miner:
        """Mines by BM25 among texts in memory, for contexts as text; the ranker may be a cross-encoder.

        InputError: it has no vectors for a largest similarity. ConfigError: this Python's SQLite has no FTS5.
        """
        if settings.max_similarity is not None and not ranker.model.has_vectors:
            raise InputError(
                f"a {ranker.model.title} has no vectors, which a largest similarity compares",
                argument="max_positive_similarity",
            )
        words = Words(sqlite3.connect(":memory:", isolation_level=None).execute)
        words.create()
        words.fill(enumerate(texts))

        def find(contexts: Sequence[Context], k: int) -> list[list[ScoredText]]:
            histories = ([context] if isinstance(context, str) else list(context) for context in contexts)
            results = (words.find(split_query_words(turns), k=k, allowed=None) for turns in histories)
            return [[ScoredText(texts[row], value) for row, value in hits] for hits in results]

        return cls(ranker, find, settings, size=len(texts))

    @torch.no_grad()
    def __call__(
        self, contexts: Any, labels: Sequence[str], *, right: Sequence[Collection[str]] | None = None
    ) -> list[list[str]]:
        """The hard negatives of each context, hardest first: at most `count`.

        Excludes the label, other `right` texts and duplicates, compared up to case, white space and tokenization.
        """
        if not labels:
            return []
        first, last = self._settings.ranks
        positives = [[label, *texts] for label, texts in zip(labels, right or [[]] * len(labels), strict=True)]
        excluded = [set(self._compute_keys(texts)) for texts in positives]
        top_k = last + max(map(len, excluded))
        while True:  # duplicates may require a larger search, unless there is nothing more to find
            top_k = min(top_k, self._size)
            results = self._find(contexts, top_k)
            wrong = [self._select_wrong(hits, out) for hits, out in zip(results, excluded, strict=True)]
            enough = (len(texts) >= last or len(hits) < top_k for texts, hits in zip(wrong, results, strict=True))
            if top_k == self._size or all(enough):
                break
            top_k *= 2
        texts = [[hit.text for hit in hits[first - 1 : last]] for hits in wrong]
        if self._settings.max_similarity is not None:
            return self._drop_similar(texts, positives)
        return [candidates[: self._settings.count] for candidates in texts]

    def _drop_similar(self, texts: list[list[str]], positives: Sequence[Sequence[str]]) -> list[list[str]]:
        """The first texts of each list that are no near-duplicates of its positives; encodes no more than it needs."""
        count, limit = self._settings.count, self._settings.max_similarity
        assert limit is not None
        chosen: list[list[str]] = [[] for _ in texts]
        waiting = {row: iter(candidates) for row, candidates in enumerate(texts)}
        vectors: dict[str, Tensor] = {}
        while waiting:
            compared = {row: [*islice(rest, count - len(chosen[row]))] for row, rest in waiting.items()}
            new = [
                text
                for row, candidates in compared.items()
                for text in (*candidates, *positives[row])
                if text not in vectors
            ]
            if new := list(dict.fromkeys(new)):
                encoded = torch.from_numpy(self._ranker.encode_candidates(new))
                vectors |= zip(new, normalize(encoded, dim=1), strict=True)
            for row, candidates in compared.items():
                near = torch.stack([vectors[text] for text in positives[row]])
                chosen[row] += [text for text in candidates if float((near @ vectors[text]).max()) <= limit]
            waiting = {
                row: waiting[row] for row, candidates in compared.items() if candidates and len(chosen[row]) < count
            }
        return chosen

    def _select_wrong(self, hits: Sequence[SearchHit], right: Collection[Hashable]) -> list[SearchHit]:
        """The distinct hits that are not among these texts."""
        wrong: dict[Hashable, SearchHit] = {}
        for key, hit in zip(self._compute_keys([hit.text for hit in hits]), hits, strict=True):
            wrong.setdefault(key, hit)
        return [hit for key, hit in wrong.items() if key not in right]

    def _compute_keys(self, texts: Sequence[str]) -> list[Hashable]:
        return [tuple(ids) for ids in self._ranker.text.tokenize_candidates([normalize_text(text) for text in texts])]
