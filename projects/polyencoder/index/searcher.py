"""`Searcher`: from contexts to hits in three timed steps: encode, search, re-rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from polyencoder.calibration import DEPTH, CalibratedRanker, Calibration
from polyencoder.calibration.risk import find_promised_risk
from polyencoder.encoding.protocol import Context, Dialogue
from polyencoder.errors import ConfigError
from polyencoder.guesses import change_options
from polyencoder.index.base import Index
from polyencoder.index.documents import DOCUMENT
from polyencoder.index.filters import check_fields
from polyencoder.index.grouping import find_enough, limit_groups
from polyencoder.index.hits import LATE_RERANK_K, Hit, compute_pool_size, count_first, diversify
from polyencoder.index.options import SearchOptions
from polyencoder.index.rerank import RERANK_K, check_reranker, rerank
from polyencoder.search.contexts import Contexts
from polyencoder.text.context import normalize_lines
from polyencoder.text.dialogue import check_contexts

_BATCH_SIZE = 1024  # contexts whose vectors are in memory at once, and share a scan
_TOKEN_BATCH_SIZE = 256  # the same, where the vectors of their tokens are kept, too
# The number of the first texts that, by reciprocal ranks, have the `DEPTH` best scores among them: a text that is
# before the tenth of the vectors, whose sum is at least 1/70, has a rank below 80 in one of the lists.
FUSED = 200


class Searcher:
    """Answers contexts from an index, with fixed settings.

    Attributes:
        options: how the index is searched.
        calibration: converts the scores that order the hits to probabilities; None without one.
        seconds: spent so far on each step: `encode`, `search` and, with re-ranking, `rerank`.
        contexts: the number answered so far.
        improbable: for each of the last contexts, the best hit if all were too improbable, else None.
        left_out: the number of better candidates that were dropped as turns of their contexts.
    """

    def __init__(
        self,
        ranker: CalibratedRanker,
        index: Index,
        options: SearchOptions | None = None,
        *,
        reranker: CalibratedRanker | None = None,
        rerank_k: int | None = None,
        keep_turns: bool = False,
        texts: int = 0,
        **changes: Any,
    ) -> None:
        """See `Ranker.search` for the settings and errors; `changes` are fields of the options.

        `texts` is the minimum number of different texts to return, if available, beyond `top_k` if necessary.
        """
        options = change_options(options or SearchOptions(), changes)
        if index.split is not None and options.group_by is None:
            options = replace(options, group_by=DOCUMENT)
        index.check(options)
        if len(index):
            index.check_group(options)
            check_fields(options.filter, has_field=index.has_field)
        if reranker is None and ranker.model.reads_pairs and not options.words_only:
            reranker = ranker  # a late-interaction encoder searches by vectors, then re-ranks by tokens
        if rerank_k is not None and reranker is None:
            raise ConfigError("rerank_k is read only with rerank: give that too, or leave it out", argument="rerank_k")
        if rerank_k is None:
            rerank_k = LATE_RERANK_K if reranker is ranker else RERANK_K
        if reranker is not None:
            check_reranker(reranker, k=rerank_k)
        self.index = index
        self.reranker = reranker
        self.options = options
        self.seconds = {"encode": 0.0, "search": 0.0} | ({"rerank": 0.0} if reranker else {})
        self.contexts = self.left_out = 0
        self.improbable: list[Hit | None] = []
        self._ranker = ranker
        self._rerank_k = rerank_k
        self._keep_turns = keep_turns
        calibration = (reranker or ranker).calibration
        # A probability is a share among the best scores, which words alone need not find
        self.calibration = None if calibration is None or options.words_only else calibration.for_search
        self._min_probability = options.threshold(self.calibration, of=reranker or ranker, index=index.address)
        self._texts = texts

    @property
    def top_k(self) -> int:
        """The number of hits per context: `top_k`, or all candidates if there are fewer."""
        return self.options.k(len(self.index))

    @property
    def among(self) -> int:
        """The number of different texts that pass the filter; of candidates in Milvus, which cannot count texts."""
        return self.index.count_texts(self.options.filter)

    def __call__(self, contexts: Sequence[Dialogue]) -> list[list[Hit]]:
        """The hits of each context, best first."""
        turns = check_contexts(contexts)
        hits: list[list[Hit]] = []
        improbable: list[Hit | None] = []
        batch_size = _BATCH_SIZE if self._ranker.model.token_dim is None else _TOKEN_BATCH_SIZE
        for first in range(0, max(len(turns), 1), batch_size):
            batch = turns[first : first + batch_size]
            with self._time("encode"):
                encoded = self._ranker.encode_contexts(batch)
            hits += self.find(encoded, batch)
            improbable += self.improbable
        self.improbable = improbable
        return hits

    def find(self, encoded: Contexts, contexts: Sequence[Context]) -> list[list[Hit]]:
        """Like `__call__`, for encoded contexts. Their texts serve to drop repeated turns, and to re-rank."""
        top_k, texts, diversity = self.top_k, self._texts, self.options.diversity
        if top_k == 0:  # the index is empty
            self.improbable = [None] * len(contexts)
            return [[] for _ in contexts]
        pool = compute_pool_size(top_k) if diversity else top_k
        if self.calibration is not None:
            texts = max(texts, FUSED if self.options.hybrid else DEPTH)
        if self.reranker is not None:
            texts = max(texts, self._rerank_k)
        plain = replace(self.options, diversity=None, group_by=None, group_size=None)

        def search(positions: Sequence[int], k: int) -> list[list[Hit]]:
            part = encoded if len(positions) == len(contexts) else encoded.select(positions)
            return self.index.search(part, plain, texts=[contexts[position] for position in positions], top_k=k)

        with self._time("search"):
            spoken = [set[str]() if self._keep_turns else normalize_lines(context) for context in contexts]
            enough = {"hits": pool, "groups": top_k, "texts": texts, "group_texts": self._texts}
            hits, left_out = find_enough(search, self.options, spoken=spoken, **enough)
        self.left_out += left_out
        if self.reranker is not None:
            with self._time("rerank"):
                same_model = self.reranker is self._ranker
                hits = rerank(
                    self.reranker,
                    contexts,
                    hits,
                    k=self._rerank_k,
                    encoded=encoded if same_model and encoded.tokens is not None else None,
                    index=self.index if same_model else None,
                )
        self.improbable = [None] * len(hits)
        if self.calibration is not None:
            among = self.among
            hits = [self._add_probabilities(row, best, self.calibration, among=among) for row, best in enumerate(hits)]
        hits = [limit_groups(context_hits, self.options) for context_hits in hits]
        if diversity:
            hits = diversify(hits, self.index.get_vectors, k=top_k, depth=pool, diversity=diversity)
        self.contexts += len(hits)
        return [ranking[: max(top_k, count_first(ranking, self._texts))] for ranking in hits]

    def _add_probabilities(self, row: int, hits: list[Hit], calibration: Calibration, *, among: int) -> list[Hit]:
        """Adds probabilities to the `DEPTH` best hits, and drops those that are too improbable, or have none."""
        all_scores = [hit.score if self.reranker is None else hit.rerank_score for hit in hits]
        scores = [score for score in all_scores if score is not None]  # of the first hits
        if not scores:
            return hits if self._min_probability is None else []
        probabilities = calibration.of_search([hit.text for hit in hits[: len(scores)]], scores, among=among)
        rated = [hit._replace(probability=value) for hit, value in zip(hits, probabilities, strict=False)]
        best = scores.index(max(scores))  # in a hybrid search not always the first
        if (value := probabilities[best]) is not None:
            risk = find_promised_risk(calibration.promises_for(self.index.address), value)
            rated[best] = rated[best]._replace(risk=risk)
        if self._min_probability is None:
            return rated + hits[len(scores) :]
        likely = [hit for hit in rated if hit.probability is not None and hit.probability >= self._min_probability]
        self.improbable[row] = None if likely else rated[best]
        if self.options.max_risk is not None:  # tested for the best score, which words may have moved down
            likely.sort(key=lambda hit: hit.id != rated[best].id)
        return likely

    @contextmanager
    def _time(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] += time.perf_counter() - start
