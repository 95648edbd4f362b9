"""Changes the index while it is searched: on disk before the answer, and visible to all workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from polyencoder.errors import InputError
from polyencoder.index.base import Candidate, Index
from polyencoder.index.folder import FolderIndex
from polyencoder.serving.config import no_index
from polyencoder.serving.engine import Engine

__all__ = ["Writer"]


class _Change(NamedTuple):
    make: Callable[[Index], None]
    done: Future[int]


class Writer:
    """One thread that changes the index.

    Changes that wait together become one of an index folder, which waits for the disk once; one that fails fails by
    itself. A change that has begun is finished, whether somebody waits for it or not.
    """

    def __init__(self, engine: Engine, index: Index | None) -> None:
        self._engine = engine
        self._index = index
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="polyencoder-writer")
        self._waiting: list[_Change] = []
        self._mutex = threading.Lock()

    async def put(self, records: Sequence[Candidate]) -> int:
        """Add candidates, or give those that are there another text or other metadata. Returns how many there are then.

        Raises:
            InputError: one cannot be used, or is there twice; then nothing was changed.
            PolyencoderError: the index cannot be changed now.
        """
        self._engine.texts([record.text for record in records], name="candidates")
        ids = [record.id for record in records if record.id is not None]
        if len(set(ids)) < len(ids):
            twice = next(id_ for id_ in ids if ids.count(id_) > 1)
            raise InputError(f"candidates: the id {twice!r:.60} is there twice", argument="candidates")
        return await self._made(lambda index: index.put(records))

    async def remove(self, ids: Sequence[str]) -> int:
        """Take candidates out; an id that is not there is no error. Returns how many are left.

        Raises:
            InputError: too many ids, or none.
            PolyencoderError: the index cannot be changed now.
        """
        if not 1 <= len(ids) <= self._engine.limits.documents:
            most = self._engine.limits.documents
            raise InputError(f"ids has {len(ids):,} ids; it must have 1 to {most:,}", argument="ids")
        return await self._made(lambda index: index.remove(ids, missing_ok=True))

    def close(self) -> None:
        """Finish what was begun."""
        self._thread.shutdown()

    async def _made(self, make: Callable[[Index], None]) -> int:
        if self._index is None:
            raise no_index("change")
        change = _Change(make, Future())
        with self._mutex:
            self._waiting.append(change)
        self._thread.submit(self._make_waiting, self._index)
        return await asyncio.wrap_future(change.done)

    def _make_waiting(self, index: Index) -> None:
        with self._mutex:
            changes, self._waiting = self._waiting, []
        changes = [change for change in changes if change.done.set_running_or_notify_cancel()]
        if isinstance(index, FolderIndex):
            _make(index, changes)
        else:  # Milvus does not take back a part of what is changed
            for change in changes:
                _make(index, [change])


def _make(index: Index, changes: Sequence[_Change]) -> None:
    """Make changes one change. Each is told when all are on disk, or why it was left out."""
    if not changes:
        return
    made: list[_Change] = []
    try:
        with index.changing():
            for change in changes:
                try:
                    change.make(index)
                    made.append(change)
                except Exception as error:  # of any kind: the other changes are made
                    if len(changes) == 1:
                        raise
                    change.done.set_exception(error)
        count = len(index)
    except BaseException as error:
        for change in changes:
            if not change.done.done():
                change.done.set_exception(error)
        return
    for change in made:
        change.done.set_result(count)
