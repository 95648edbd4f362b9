"""The training data loader: seeded epochs cut into batches, sharded among processes."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from polyencoder.data.epochs import ALONE, Reader, Source, iter_endless
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler

T = TypeVar("T")

DEPTH = 2  # prefetched batches
LEAVING = 30.0  # seconds to wait for the thread at the end: a hanging source must not keep the process alive


def iterate_batches(
    source: Source[Example],
    *,
    batch_size: int,
    seed: int = 0,
    sampler: NegativeSampler | None = None,
    reader: Reader = ALONE,
    seen: int = 0,
) -> Iterator[list[Example]]:
    """Yields a process's batches without end, each epoch in another seeded order, after the `seen` examples."""
    examples = iter_endless(source, seed=seed, reader=reader, seen=seen)
    if sampler is not None:
        sampler.skip(seen, reader=reader)
        examples = map(sampler.complete, examples)
    yield from iter_batches(examples, batch_size)


def iter_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cuts items into lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, min(size, sys.maxsize))):
        yield batch


def prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """Prefetches up to `DEPTH` items in a thread, which ends before this does; its errors are raised here."""
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(DEPTH)
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
