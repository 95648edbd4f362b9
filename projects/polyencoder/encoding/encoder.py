"""`Encoder` turns token ids into arrays, by a torch model (`TorchEncoder`) or its ONNX graphs (`GraphEncoder`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from polyencoder.encoding.reading import CandidateReader
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.late import LateScore, TokenVectors
from polyencoder.search.scores import check_scores, score
from polyencoder.text.encoder import TextEncoder

Ids = Sequence[int]
Progress = Callable[[int], object]
"""Called with the number of texts of each finished batch."""

BATCH_SIZE = 256  # texts
CONTEXTS = 1 << 10  # whose vectors are in memory at once
WITH_TOKENS = 1 << 7  # the same, with the vectors of their tokens


class Encoder(ABC):
    """A model, its tokenizer and the device that it runs on.

    Attributes:
        model: a `RankerModel`, or a `GraphModel`, which describes itself by the same attributes.
        reader: keeps the vectors of the candidates that were encoded last.
    """

    model: Any
    text: TextEncoder
    device: Any

    def __init__(self) -> None:
        self.reader = CandidateReader()

    @abstractmethod
    def encode_contexts(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, max_tokens: int | None = None
    ) -> Contexts:
        """Encodes contexts, at least one; `max_tokens` of a batch, padding included. Not for cross-encoders."""

    @abstractmethod
    def encode_candidates(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
    ) -> Array:
        """Encodes candidates: float32 [candidates, dim]. Not for cross-encoders."""

    @abstractmethod
    def encode_pooled(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
    ) -> Array:
        """The pooled outputs of contexts, at least one: float32 [contexts, size]. InputError for graphs."""

    @abstractmethod
    def read_candidates(
        self, ids: Sequence[Ids], *, max_tokens: int | None = None, progress: Progress | None = None
    ) -> list[TokenVectors]:
        """Candidates as `rescore` takes them: vectors and, from a late-interaction encoder, vectors of tokens."""

    @abstractmethod
    def score_pairs(
        self, contexts: Sequence[Ids], candidates: Sequence[Ids], index: Array, *, max_tokens: int | None = None
    ) -> Array:
        """Scores of a cross-encoder, float32 [contexts, n], of candidates by `index` (int64; negative: -inf)."""

    @abstractmethod
    def get_term_weights(self) -> Mapping[str, Sequence[float]] | None:
        """`RankerModel.export_weights` of a late-interaction encoder, as `LateScore` takes them; else None."""

    @property
    @abstractmethod
    def facts(self) -> tuple[str, str]:
        """The model's size and precision, for a ranker's `repr`."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """The threads that compute, on a CPU."""

    @abstractmethod
    def copy_to_worker(self, *, number: int, threads: int) -> Encoder:
        """Copies the encoder to worker process `number`, with this number of threads; each on its own GPU, if any."""

    def get_state(self) -> Hashable:
        """A value that changes with the model's weights, for caches of their results."""
        return None

    def cache_candidates(self, ids: Sequence[Ids], *, max_tokens: int | None = None) -> list[TokenVectors]:
        """Like `read_candidates`, with the cache of `reader`."""
        return self.reader(self, ids, max_tokens=max_tokens)

    def score(self, contexts: Contexts, vectors: Array) -> Array:
        """Scores encoded candidates [n, dim] for each context: float32 [contexts, n]."""
        return score(contexts, vectors, attention=self.model.config.poly_attention)

    def rescore(self, contexts: Contexts, candidates: Sequence[TokenVectors]) -> Array:
        """Scores candidates that were read for each context: float32 [contexts, n]."""
        if (weights := self.get_term_weights()) is None:
            return self.score(contexts, np.stack([candidate.vector for candidate in candidates]))
        late = LateScore(weights)
        return np.stack([late(tokens, candidates) for tokens in contexts.tokens or ()])

    def score_ids(
        self,
        contexts: Sequence[Ids],
        candidates: Sequence[Ids],
        index: Array | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Array:
        """Scores of a model of any kind, float32 [contexts, n], for at least one context and different candidates.

        index: as in `score_pairs`; None for every candidate of every context. max_tokens: of a batch, padding included;
        None for as many as suit the device. InputError if a score is nan.
        """
        if not self.model.has_vectors:
            if index is None:
                index = np.broadcast_to(np.arange(len(candidates)), (len(contexts), len(candidates)))
            return check_scores(self.score_pairs(contexts, candidates, index, max_tokens=max_tokens))
        by_tokens, parts = self.model.token_dim is not None, []
        read: list[TokenVectors] = []
        if by_tokens or self.reader.fits(self.model, candidates):
            read = self.cache_candidates(candidates, max_tokens=max_tokens)
            vectors = None if by_tokens else np.stack([candidate.vector for candidate in read])
        else:
            vectors = self.encode_candidates(candidates)
        chunk_size = WITH_TOKENS if by_tokens else CONTEXTS
        for start in range(0, len(contexts), chunk_size):
            encoded = self.encode_contexts(contexts[start : start + chunk_size], max_tokens=max_tokens)
            rows = None if index is None else index[start : start + chunk_size]
            if vectors is not None:
                scores = self.score(encoded, vectors)
                parts.append(scores if rows is None else np.take_along_axis(scores, rows.clip(0), 1))
            elif rows is None:
                parts.append(self.rescore(encoded, read))
            else:
                row_scores = [
                    self.rescore(encoded.select([i]), [read[j] for j in row.clip(0)]) for i, row in enumerate(rows)
                ]
                parts.append(np.concatenate(row_scores))
        checked = check_scores(np.concatenate(parts))
        return checked if index is None else np.where(index < 0, np.float32(-np.inf), checked)
