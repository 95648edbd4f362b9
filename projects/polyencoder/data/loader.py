"""The training data loader: seeded epochs cut into batches, sharded among processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from polyencoder.data.epochs import InMemory, Reader, Source, endless
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.errors import ConfigError

__all__ = ["TrainingLoader", "prefetched"]

T = TypeVar("T")

DEPTH = 2  # batches that are made while the model is busy with another one
LEAVING = 30.0  # seconds in which a batch that is under way is finished; a source that hangs keeps no process alive


class TrainingLoader:
    """Batches of examples without end, in an order that the seed decides, another one in each epoch.

    Args:
        source: the examples, in memory or read as they are needed; a list will do.
        batch_size: examples of one process.
        seed: of the order, and of sampled candidates.
        sampler: draws candidates for examples that have none.
        reader: which of the processes this is.
    """

    def __init__(
        self,
        source: Source[Example] | Sequence[Example],
        *,
        batch_size: int,
        seed: int = 0,
        sampler: NegativeSampler | None = None,
        reader: Reader | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1", argument="batch_size")
        self.source: Source[Example] = InMemory(source) if isinstance(source, Sequence) else source
        self.batch_size, self.reader = batch_size, reader or Reader()
        self._seed, self._sampler = seed, sampler

    @property
    def examples(self) -> int:
        """How many an epoch has, for all processes together; of a stream, about how many."""
        return self.source.counts().examples

    def batches(self, *, seen: int = 0) -> Iterator[list[Example]]:
        """The batches of this process after the `seen` examples that it has had in an earlier part of the run."""
        examples = endless(self.source, seed=self._seed, reader=self.reader, seen=seen)
        if self._sampler is not None:
            self._sampler.skip(seen, reader=self.reader)
            examples = map(self._sampler.complete, examples)
        while batch := list(islice(examples, self.batch_size)):
            yield batch


def prefetched(items: Iterable[T], *, depth: int = DEPTH) -> Iterator[T]:
    """The items, made by a thread of their own, at most `depth` before they are asked for. Its errors come out here.

    The thread has ended when this has: torch ends a process with an error if Python ends while a thread is inside it.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    over = threading.Event()

    def put(kind: bool, value: Any) -> bool:
        while not over.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(True, item):
                    return
            put(False, None)
        except BaseException as error:  # the reader of the queue raises it
            put(False, error)

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    try:
        while True:
            is_item, value = ready.get()
            if is_item:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        over.set()
        maker.join(LEAVING)
