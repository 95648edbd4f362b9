"""`BatchForward`: a server's batches with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polyencoder.calibration import CalibratedRanker
from polyencoder.index.base import Index
from polyencoder.index.hits import Hit
from polyencoder.index.open import open_index
from polyencoder.index.options import SearchOptions
from polyencoder.index.rerank import RERANK_K, check_reranker
from polyencoder.index.searcher import Searcher
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.mode import in_evaluation
from polyencoder.ranker import Ranker
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.context import stacked
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import CANDIDATE, CONTEXT, PAIR, Array, Ids
from polyencoder.text import token_batches


class BatchForward:
    """Computes items of one kind, sorted by length, at most `max_tokens` tokens at once, padding included.

    The result of an item does not depend on the others: in float32 up to the rounding of another order of sums.
    """

    def __init__(self, ranker: CalibratedRanker, *, max_tokens: int = ServerConfig.batch_tokens) -> None:
        self.ranker = ranker
        self.max_tokens = max_tokens
        self._threads = torch.get_num_threads()

    def prepare_thread(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of each thread

    @torch.inference_mode()
    def __call__(self, kind: str, tokens: Sequence[Any]) -> list[Any]:
        """The result of each."""
        model = self.ranker.model
        with in_evaluation(model):
            if kind == PAIR:
                return self._pairs(model, tokens)
            if kind == CANDIDATE and model.token_dim is None:
                read = self.ranker.reader(model, self.ranker.text, tokens, max_tokens=self.max_tokens)
                return [one.vector for one in read]
            return self._in_batches(tokens, partial(self._contexts if kind == CONTEXT else self._candidates, model))

    @torch.inference_mode()
    def score(self, context: ContextEncoding, candidates: Sequence[Tensor]) -> Array:
        return self.ranker.model.score(context, torch.stack([*candidates]))[0].float().cpu().numpy()

    def embeddings(self, kind: str, encoded: Sequence[Any]) -> Array:
        read = self.ranker.model.context_vectors if kind == CONTEXT else torch.atleast_2d
        return torch.cat([read(one) for one in encoded]).float().cpu().numpy()

    def searcher(self, index: Index, options: SearchOptions, **settings: Any) -> Searcher:
        return Searcher(self.ranker, index, options, **settings)

    @torch.inference_mode()
    def find(
        self, searcher: Searcher, encoded: Sequence[ContextEncoding], contexts: Sequence[Sequence[str]]
    ) -> list[list[Hit]]:
        return searcher.find(stacked(encoded), contexts)

    def _in_batches(self, tokens: Sequence[Ids], encode: Callable[[list[Ids]], Sequence[Any]]) -> list[Any]:
        results: list[Any] = [None] * len(tokens)
        for batch in token_batches([len(ids) for ids in tokens], max_tokens=self.max_tokens):
            for place, result in zip(batch, encode([tokens[i] for i in batch]), strict=True):
                results[place] = result
        return results

    def _contexts(self, model: RankerModel, ids: list[Ids]) -> list[ContextEncoding]:
        encoded = model.encode_context(self.ranker.text.pad(ids).to(self.ranker.device))
        return [encoded.select(row) for row in range(len(ids))]

    def _candidates(self, model: RankerModel, ids: list[Ids]) -> Sequence[Tensor]:
        return model.encode_candidates(self.ranker.text.pad(ids).to(self.ranker.device)).unbind()

    def _pairs(self, model: RankerModel, pairs: Sequence[tuple[Ids, Ids]]) -> list[float]:
        text, device = self.ranker.text, self.ranker.device
        rows: dict[tuple[int, ...], list[int]] = {}  # the pairs of each different context, which is read once
        for place, (ids, _) in enumerate(pairs):
            rows.setdefault(tuple(ids), []).append(place)
        if model.token_dim is not None:
            return self._by_tokens(model, pairs, rows)
        index = torch.full((len(rows), max(map(len, rows.values()))), -1)
        for row, places in enumerate(rows.values()):
            index[row, : len(places)] = torch.tensor(places)
        contexts, candidates = text.pad(list(rows)).to(device), text.pad([ids for _, ids in pairs]).to(device)
        scores = model(contexts, candidates, index.to(device), max_tokens=self.max_tokens).cpu()
        of_pair = torch.empty(len(pairs)).index_put((index[index >= 0],), scores[index >= 0].float())
        values: list[float] = of_pair.tolist()
        return values

    def _by_tokens(
        self, model: RankerModel, pairs: Sequence[tuple[Ids, Ids]], rows: dict[tuple[int, ...], list[int]]
    ) -> list[float]:
        """Like `_pairs`, for a model whose token vectors of candidates are cached."""
        text = self.ranker.text
        contexts = self._in_batches(list(rows), partial(self._contexts, model))
        candidates = [candidate for _, candidate in pairs]
        read = self.ranker.reader(model, text, candidates, max_tokens=self.max_tokens)
        values = [0.0] * len(pairs)
        for encoded, places in zip(contexts, rows.values(), strict=True):
            scores = model.rescore(encoded, [read[place] for place in places])[0].tolist()
            for place, score in zip(places, scores, strict=True):
                values[place] = score
        return values


def load(config: ServerConfig) -> tuple[BatchForward, Index | None, Ranker | None]:
    """Loads the ranker, opens the index, and loads the cross-encoder that reranks the results of searches.

    Raises:
        PolyencoderError: a model or the index is missing, damaged, or does not fit the others.
    """
    if config.index is not None:
        open_index(config.index).close()  # an index that is missing is an error before a model is loaded
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.workers))
    ranker = Ranker.from_pretrained(
        config.model, device=config.device, backend=config.backend, dtype=config.model_dtype
    )
    reranker = None
    if config.rerank is not None:
        reranker = Ranker.from_pretrained(config.rerank, device=config.device, dtype=config.model_dtype)
        check_reranker(reranker, k=config.rerank_k or RERANK_K)
    index = open_index(config.index, ranker) if config.index else None
    return BatchForward(ranker, max_tokens=config.batch_tokens), index, reranker
