"""Hard negatives by words: the candidates that BM25 ranks high."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

import torch

from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.errors import InputError
from polyencoder.index.folder.words import Words
from polyencoder.index.words import query_words
from polyencoder.settings.training import HardNegatives
from polyencoder.training.hard_negatives import Choice, ScoredText


class WordMiner:
    """Mines hard negatives by BM25.

    Args:
        ranker: of any architecture. It encodes candidates, if there is a largest similarity, for which it needs
            vectors.
        texts: the candidates, in memory as a table of their words.

    Raises:
        InputError: there are no texts, or the ranker has no vectors for the largest similarity.
        ConfigError: this Python's SQLite has no FTS5.
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
        if len(turns) != len(labels):
            raise InputError(f"{len(turns)} contexts, but {len(labels)} labels")

        def find(k: int) -> list[list[ScoredText]]:
            found = (self._words.find(query_words(one), k=k, allowed=None) for one in turns)
            return [[ScoredText(self._texts[row], score) for row, score in hits] for hits in found]

        return self._choice(find, labels, size=len(self._texts), right=right)
