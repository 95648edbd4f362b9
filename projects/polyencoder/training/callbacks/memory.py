"""Finds the largest chunk of gradient caching that fits the GPU's memory, by real steps before the run's first one.

The batch size stays: with in-batch candidates a smaller batch would have fewer negatives. Halving on
`torch.OutOfMemoryError` is also how accelerate's `find_executable_batch_size` works, which changes the batch.
"""

from __future__ import annotations

import gc
import io
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

import torch

from polyencoder.data.collator import Batch, Collator
from polyencoder.data.epochs import Source
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.errors import ConfigError, TrainingError
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.distributed import Processes
from polyencoder.training.objective import RankingObjective

_log = logging.getLogger(__name__)

EXAMPLES = 10_000  # among which the longest are looked for


class MemoryLimit(Callback):
    """Sets `max_tokens` of the run's objective to the most that fits, once; a resumed run keeps it.

    The steps leave no trace: weights, optimizer and random numbers are restored.

    Args:
        objective: of the run.
        longest: makes the longest batch.

    Raises:
        TrainingError: not even one sequence at a time fits.
    """

    name = "memory"
    kept = ("_limit",)

    def __init__(self, objective: RankingObjective, longest: Callable[[], Batch]) -> None:
        self._objective, self._longest = objective, longest
        self._limit: int | None = None  # 0: the whole batch fits
        self._done = False

    def before_step(self, run: Run, batch: Batch | None) -> Batch | None:
        if not self._done:
            self._done = True
            if self._limit is None:
                self._limit = self._found(run)
            self._objective.max_tokens = self._limit or None
        return batch

    def _found(self, run: Run) -> int:
        batch, vectors = self._longest(), run.model.has_vectors
        state = io.BytesIO()
        torch.save(run.state_dict(), state)  # as a checkpoint has it
        length = run.model.longest_sequence(run.model.config)
        most = (_tokens(batch, pairs=not vectors) - 1) // length  # of sequences that are no limit yet
        sizes = [0, *(1 << power for power in reversed(range(most.bit_length())))]
        found = next((size for size in sizes if self._fits(run, batch, size * length or None)), None)
        state.seek(0)
        run.load_state_dict(torch.load(state, map_location="cpu", weights_only=True))
        run.updates.optimizer.zero_grad()
        if found is None:
            raise TrainingError(
                f"a batch of {len(batch)} examples does not fit the memory, not even with one sequence of {length} "
                "tokens at a time: give a smaller text_truncate or batch_size, or lora",
                argument="find_batch_size",
            )
        setting = f"grad_cache {found}" if vectors else f"pair_tokens {found * length}"
        _log.info("memory: a batch of %d examples fits %s", len(batch), f"with {setting}" if found else "whole")
        return found * length

    def _fits(self, run: Run, batch: Batch, max_tokens: int | None) -> bool:
        """Whether steps on a batch end without running out of memory; the last one has the optimizer's state, too."""
        self._objective.max_tokens = max_tokens
        try:
            for _ in range(run.updates.accumulate + 1):
                run.updates.zero_grad()
                self._step(run, batch)
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            run.updates.optimizer.zero_grad()
            gc.collect()  # what the error's traceback held
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _step(self, run: Run, batch: Batch) -> None:
        with run.updates.autocast():
            outcome = self._objective(batch.to(next(run.model.parameters()).device))
        if outcome is not None:
            run.updates.backward(outcome.loss)
            run.updates.step()


def _tokens(batch: Batch, *, pairs: bool) -> int:
    """The tokens of a batch with padding: of its larger side or, with `pairs`, of all contexts with candidates."""
    contexts, index = batch.contexts.ids, batch.pool.index
    candidates = contexts[:0] if batch.candidates is None else batch.candidates.ids
    if not pairs:
        return max(contexts.numel(), candidates.numel())
    count = len(batch) * len(batch.pool.texts) if index is None else index.numel()
    return count * (contexts.size(1) + candidates.size(1))


def longest_batch(
    train: Sequence[Example] | Source[Example], collator: Collator, *, size: int, sampler: NegativeSampler | None
) -> Batch:
    """A batch of the longest contexts with the longest responses and candidates, of the first `EXAMPLES` examples."""
    items: Iterable[Example] = train if isinstance(train, Sequence) else train.items()
    examples = list(islice(items, EXAMPLES))
    if sampler is not None:
        examples = [sampler.complete(one, key=str(place)) for place, one in enumerate(examples)]
    contexts = sorted(examples, key=lambda one: -sum(map(len, one.turns)))[:size]
    responses = sorted(examples, key=lambda one: -max(map(len, (one.label, *(one.candidates or ())))))
    distinct = {(one.label, *(one.candidates or ())): one for one in responses}  # equal ones are encoded once
    pairs = zip(contexts, [*distinct.values(), *responses][:size], strict=False)  # the last batch may be smaller
    return collator([replace(response, turns=context.turns) for context, response in pairs])


def check_can_find(device: torch.device, processes: Processes) -> None:
    """Raises ConfigError where a lack of memory is no error that can be caught, or processes would differ."""
    why = None
    if device.type == "cpu":
        why = "needs a GPU: on a CPU the system ends a process that has no memory left"
    elif processes.count > 1:
        why = "runs in one process: others would wait for one without memory"
    if why:
        raise ConfigError(
            f"find_batch_size {why}; give grad_cache (a cross-encoder: pair_tokens) instead",
            argument="find_batch_size",
        )
