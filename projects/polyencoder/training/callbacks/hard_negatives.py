"""Hard negatives in training: mined wrong answers join the in-batch negatives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch

from polyencoder.data.collator import Batch
from polyencoder.data.pool import shared_pool
from polyencoder.errors import ConfigError
from polyencoder.index.base import Index
from polyencoder.modeling import CrossEncoder
from polyencoder.modeling.mode import in_evaluation
from polyencoder.protocol import TextRanker
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.hard_negatives import HardNegatives, Miner

__all__ = ["MinedNegatives"]

_log = logging.getLogger(__name__)


class MinedNegatives(Callback):
    """Re-indexes the labels seen so far, again and again, and adds the negatives that it mines there to each batch.

    What was mined for one example is a candidate of all of them; each text is there once, so that none is a negative of
    the example whose label it is. Until the first index batches have their labels alone.

    Args:
        ranker: that learns, a bi- or poly-encoder.
        settings: which of the wrong answers are taken.
        every: updates between two indexes.
        index: makes an index of texts.
    """

    def __init__(
        self, ranker: TextRanker, settings: HardNegatives, *, every: int, index: Callable[[Sequence[str]], Index]
    ) -> None:
        if every < 1:
            raise ConfigError(f"hard negatives every {every} updates: give 1 or more")
        self._ranker, self._settings, self._every, self._make = ranker, settings, every, index
        self._seen: dict[str, None] = {}
        self._miner: Miner | None = None
        self._indexed_at: int | None = None

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if batch is None:
            return None
        assert batch.pool.labels is not None
        labels = [batch.pool.candidates(row)[column] for row, column in enumerate(batch.pool.labels.tolist())]
        self._seen.update(dict.fromkeys(labels))
        steps = run.updates.count + run.skipped  # without mined negatives a batch may have none at all
        if self._indexed_at is None:
            self._indexed_at = steps
        if steps - self._indexed_at >= self._every:
            self._index(run)
        if self._miner is None:
            return batch
        assert not isinstance(run.model, CrossEncoder)
        with in_evaluation(run.model), torch.no_grad(), run.updates.autocast():
            mined = self._miner(run.model.encode_context(batch.contexts), labels)
        pool = shared_pool([*labels, *chain.from_iterable(mined)], labels).to(batch.contexts.ids.device)
        return replace(batch, pool=pool, candidates=None)

    def _index(self, run: Run) -> None:
        start = time.perf_counter()
        with in_evaluation(run.model), run.updates.autocast():
            self._miner = Miner(self._ranker, self._make(list(self._seen)), self._settings)
        self._indexed_at = run.updates.count + run.skipped
        seconds = time.perf_counter() - start
        _log.info("hard negatives: indexed the %d labels seen so far, in %.1f s", len(self._seen), seconds)
