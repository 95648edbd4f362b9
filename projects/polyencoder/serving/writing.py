"""`IndexWriter`: changes the index while it is searched: on disk before the answer, and visible to all workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from polyencoder.errors import InputError
from polyencoder.index.base import Index
from polyencoder.index.folder.files import IndexBusy, WriteError
from polyencoder.serving.config import build_no_index_error


class _Change(NamedTuple):
    make: Callable[[Index], object]
    done: Future[int]


class IndexWriter:
    """One thread that changes the index.

    Queued changes become one transaction of an index folder, which syncs the disk once; a change that fails does not
    affect the others. A change that has begun is finished even if its client stops waiting.
    """

    def __init__(self, index: Index | None) -> None:
        self._index = index
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="polyencoder-writer")
        self._waiting: list[_Change] = []
        self._mutex = threading.Lock()

    async def change(self, make: Callable[[Index], object]) -> int:
        """Makes a change, and returns the number of candidates after it; raises what `make` raises.

        Raises:
            ConfigError: there is no index.
            PolyencoderError: the index cannot be changed now.
        """
        if self._index is None:
            raise build_no_index_error("change")
        change = _Change(make, Future())
        with self._mutex:
            self._waiting.append(change)
        self._thread.submit(self._make_waiting, self._index)
        return await asyncio.wrap_future(change.done)

    def close(self) -> None:
        """Finishes the changes that have begun."""
        self._thread.shutdown()

    def _make_waiting(self, index: Index) -> None:
        with self._mutex:
            changes, self._waiting = self._waiting, []
        changes = [change for change in changes if change.done.set_running_or_notify_cancel()]
        if index.rolls_back:
            _make(index, changes)
        else:
            for change in changes:
                _make(index, [change])


def _make(index: Index, changes: Sequence[_Change]) -> None:
    """Makes changes in one transaction. Each gets the result when all are on disk, or its error."""
    if not changes:
        return
    completed: list[_Change] = []
    try:
        with index.changing():
            for change in changes:
                try:
                    change.make(index)
                    completed.append(change)
                except Exception as error:  # any error; the other changes are made
                    if len(changes) == 1:
                        raise
                    change.done.set_exception(error)
        count = len(index)
    except BaseException as error:
        waiting = [change for change in changes if not change.done.done()]
        is_of_a_text = isinstance(error, InputError) and not isinstance(error, IndexBusy | WriteError)
        if is_of_a_text and len(waiting) > 1:  # a folder encodes texts at the end of the transaction
            for change in waiting:
                _make(index, [change])
            return
        for change in waiting:
            change.done.set_exception(error)
        return
    for change in completed:
        change.done.set_result(count)
