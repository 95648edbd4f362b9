"""Adds mined hard negatives to a batch's candidates."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.encoding.protocol import TextRanker
from polyencoder.index.meta import get_separable_model
from polyencoder.modeling.mode import in_evaluation
from polyencoder.settings.training import HardNegatives
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.hard_negatives import Miner, build_exhaustive_search

_log = logging.getLogger(__name__)


class MinedNegatives(Callback):
    """Re-encodes the labels seen so far at intervals, and adds negatives mined among them to each batch.

    Negatives mined for one example are candidates of all examples whose candidates are the batch's, and of this one
    where each has its own; none is a negative of an example that it is right for. Until labels are first encoded,
    batches are unchanged. Checkpoints store the labels and their vectors, which are those of an earlier update.

    Args:
        ranker: mines, with its vectors: the one being trained, or the base of a residual cross-encoder, which encodes
            each label once.
    """

    name = "hard negatives"

    def __init__(self, ranker: TextRanker, settings: HardNegatives) -> None:
        self._ranker, self._settings, self._every = ranker, settings, settings.every
        self._seen: dict[str, None] = {}
        self._vectors: Tensor | None = None  # of the first labels of `_seen`
        self._miner: Miner | None = None
        self._encoded_at: int | None = None

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if batch is None:
            return None
        assert batch.pool.labels is not None
        labels = [batch.pool.list_candidates(row)[column] for row, column in enumerate(batch.pool.labels.tolist())]
        right = batch.pool.list_right()
        self._seen.update(dict.fromkeys(chain.from_iterable(right)))
        steps = run.updates.count + run.skipped  # without mined negatives a batch may have none at all
        if self._encoded_at is None:
            self._encoded_at = steps
        if steps - self._encoded_at >= self._every:
            self._encode(run)
        if self._miner is None:
            return batch
        model = get_separable_model(self._ranker)
        with in_evaluation(run.model), torch.no_grad(), run.updates.autocast():
            mined = self._miner(model.encode_context(batch.contexts), labels, right=right)
        return replace(batch, pool=batch.pool.add_negatives(mined), candidates=None)

    def _encode(self, run: Run) -> None:
        start = time.perf_counter()
        is_trained = any(parameter.requires_grad for parameter in self._ranker.model.parameters())
        old = None if is_trained else self._vectors
        texts = list(self._seen)[0 if old is None else len(old) :]
        with in_evaluation(run.model), run.updates.autocast():
            new = torch.from_numpy(self._ranker.encode_candidates(texts))
        self._mine_among(new if old is None else torch.cat([old, new]))
        self._encoded_at = run.updates.count + run.skipped
        seconds = time.perf_counter() - start
        which = "labels seen so far" if old is None else "new labels"
        _log.info("hard negatives: encoded the %d %s, in %.1f s", len(texts), which, seconds)
        if len(self._seen) <= (first := self._settings.ranks[0]):
            _log.warning(
                "no hard negatives are mined: hard_negative_ranks begin with %d, and a label is ranked among %d others",
                first,
                len(self._seen) - 1,
            )

    def _mine_among(self, vectors: Tensor) -> None:
        self._vectors = vectors
        attention = self._ranker.model.config.poly_attention
        find = build_exhaustive_search(list(self._seen)[: len(vectors)], vectors, attention=attention)
        self._miner = Miner(self._ranker, find, self._settings, size=len(vectors))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self._seen), "vectors": self._vectors, "encoded_at": self._encoded_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen, self._encoded_at = dict.fromkeys(state["seen"]), state["encoded_at"]
        if state["vectors"] is not None:
            self._mine_among(state["vectors"])
