"""`GraphForward`: a server's batches without torch, by `polyencoder.runtime`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from polyencoder.errors import ConfigError
from polyencoder.index.certificate import ShortlistOptions
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.runtime import Contexts, FolderIndex, Ranker
from polyencoder.search.late import TokenVectors
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import CONTEXT, PAIR, Array, Ids
from polyencoder.text.memory import TextMemory

_KEPT_BYTES = 1 << 26  # of candidates that were encoded lately
_SEARCHED = {field.name for field in fields(ShortlistOptions)}
_Search = Callable[[Contexts, Sequence[Sequence[str]]], list[list[Hit]]]


class GraphForward:
    """Computes items of one kind with exported graphs, which sort them by length."""

    def __init__(self, ranker: Ranker, *, max_tokens: int = ServerConfig.batch_tokens) -> None:
        self.ranker: Any = ranker
        self.max_tokens = max_tokens
        self._kept = TextMemory[TokenVectors](lambda one: one.vector.nbytes + one.tokens.nbytes, limit=_KEPT_BYTES)

    def prepare_thread(self) -> None:
        pass  # onnxruntime has threads of its own

    def __call__(self, kind: str, tokens: Sequence[Any]) -> list[Any]:
        """The result of each."""
        if kind == PAIR:
            return self.ranker.score_ids(tokens, read=self._candidates).tolist()
        if kind == CONTEXT:
            contexts = self.ranker.encode_context_ids(tokens)
            return [contexts.select([row]) for row in range(len(tokens))]
        return self._candidates(tokens)

    def _candidates(self, tokens: Sequence[Ids]) -> list[TokenVectors]:
        """Encodes candidates, those with equal tokens once, or takes them from the cache."""
        keys = [array("i", ids).tobytes().hex() for ids in tokens]
        found = {key: vector for key in keys if (vector := self._kept.get(key)) is not None}
        if new := {key: ids for key, ids in zip(keys, tokens, strict=True) if key not in found}:
            read = dict(zip(new, self.ranker.read_candidate_ids([*new.values()]), strict=True))
            self._kept.update(read)
            found |= read
        return [found[key] for key in keys]

    def score(self, context: Contexts, candidates: Sequence[TokenVectors]) -> Array:
        scores: Array = self.ranker.rescore(context, candidates)[0]
        return scores

    def embeddings(self, kind: str, encoded: Sequence[Any]) -> Array:
        return np.stack([one.context_vectors[0] if kind == CONTEXT else one.vector for one in encoded])

    def searcher(
        self, index: FolderIndex, options: SearchOptions, *, reranker: None, rerank_k: None, **settings: Any
    ) -> _Search:
        for field in fields(options):
            if field.name not in _SEARCHED and getattr(options, field.name) not in (field.default, 0):
                raise _unavailable(field.name)
        return self.ranker.searcher(index, options, read=self._candidates, **settings)

    def find(
        self, searcher: _Search, encoded: Sequence[Contexts], contexts: Sequence[Sequence[str]]
    ) -> list[list[Hit]]:
        return searcher(Contexts.concatenated(encoded), contexts)


def load(config: ServerConfig) -> tuple[GraphForward, FolderIndex | None, None]:
    """Loads the ranker and opens the index.

    Raises:
        PolyencoderError: the graphs or the index are missing or damaged, or a setting needs torch.
    """
    if config.backend == "torch":
        raise ConfigError(
            "backend is 'torch', which polyencoder-runtime does not have: give onnx or onnx-int8", argument="backend"
        )
    if config.index and ("://" in config.index or config.index.startswith("milvus:")):
        raise ConfigError(
            "polyencoder-runtime searches one index folder: give that, or install parlai-polyencoder", argument="index"
        )
    known: dict[str, tuple[Any, ...]] = {"device": (None, "cpu"), "model_dtype": ("float32",)}
    known |= {"rerank": (None,), "rerank_k": (None,)}
    for name, there in known.items():
        if getattr(config, name) not in there:
            raise _unavailable(name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranker = Ranker.from_pretrained(
        config.model,
        precision="int8" if config.backend == "onnx-int8" else "float32",
        threads=config.threads or max(1, cores // config.workers),
    )
    index = ranker.open_index(config.index) if config.index else None
    return GraphForward(ranker, max_tokens=config.batch_tokens), index, None


def _unavailable(name: str) -> ConfigError:
    return ConfigError(
        f"{name} needs torch, which polyencoder-runtime does not have: leave it out, or install parlai-polyencoder",
        argument=name,
    )
