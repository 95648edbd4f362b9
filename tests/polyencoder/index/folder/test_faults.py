"""A change that fails, is interrupted or is killed at any moment leaves the index as it was before it, or after it.

Every call that reads or writes the disk is such a moment: a statement of SQLite, a file that is written, renamed or
removed. Each of them fails in turn, before and after its work.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyencoder.errors import InputError
from polyencoder.index import Candidate, FolderIndex, verify
from polyencoder.index.meta import Fingerprints

pytestmark = pytest.mark.slow

NEW = [Candidate("new", "a new one"), Candidate("3", "another text under an id that was free again")]

Changes = Callable[[FolderIndex], None]


def added(index: FolderIndex) -> None:
    index.add(NEW[:1])


def everything(index: FolderIndex) -> None:
    with index.changing():
        index.remove(["3", "4"])
        index.add(NEW)
        index.compact()


CHANGES = pytest.mark.parametrize("change", [added, pytest.param(everything, marks=pytest.mark.long)])
AFTER = {added: lambda old: [*old, NEW[0]], everything: lambda old: [*(c for c in old if c.id not in "34"), *NEW]}


class Moments:
    """Calls of what uses the disk are counted; at the one of this number `happen` is called, before or after it."""

    def __init__(self, at: int = -1, *, after: bool = False, happen: Callable[[str], None] = print) -> None:
        self.at, self.after, self.happen = at, after, happen
        self.calls: list[str] = []

    def wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            this = len(self.calls)
            self.calls.append(str(args[-1]) if name == "execute" else name)
            if this == self.at and not self.after:
                self.happen(name)
            result = original(*args, **kwargs)
            if this == self.at and self.after:
                self.happen(name)
            return result

        return call

    @contextmanager
    def watched(self) -> Iterator[None]:
        watch = self

        class Connection(sqlite3.Connection):
            def execute(self, *args: Any) -> Any:
                return watch.wrapped("execute", partial(sqlite3.Connection.execute, self))(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
            patch.setattr(os, "fsync", self.wrapped("fsync", lambda _: None))  # there is no loss of power here
            for owner, name in ((os, "replace"), (np, "save"), (Path, "unlink"), (Path, "write_text"), (os, "open")):
                patch.setattr(owner, name, self.wrapped(name, getattr(owner, name)))
            yield


def full(name: str) -> None:
    raise sqlite3.OperationalError("disk I/O error") if name == "execute" else OSError(errno.ENOSPC, "no room")


def interrupt(_: str) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def ranker(ranker, monkeypatch):
    """Encodes and scores the same texts once, and is digested once: at each moment the same are asked for."""

    def once(method: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[str, Any] = {}

        def call(*given: Any, **settings: Any) -> Any:
            if (asked := repr((given, settings))) not in known:
                known[asked] = method(*given, **settings)
            return known[asked]

        return call

    for name in ("encode_contexts", "score"):
        monkeypatch.setattr(ranker, name, once(getattr(ranker, name)))
    monkeypatch.setattr(Fingerprints, "of", once(Fingerprints.of))
    encode = once(ranker.encoder.encode_candidates)
    monkeypatch.setattr(ranker.encoder, "encode_candidates", lambda ids, **settings: encode(ids))
    return ranker


@pytest.fixture
def moments_of(folder, ranker, tmp_path):
    """(change) -> what it calls, in order."""

    def calls(change: Changes) -> list[str]:
        shutil.copytree(folder, tmp_path / "counted")
        index, watch = FolderIndex.open(tmp_path / "counted", ranker), Moments()
        with watch.watched():
            change(index)
        return watch.calls

    return calls


@pytest.fixture
def is_before_or_after(ranker, candidates, assert_finds, tmp_path):
    """(folder, change) -> whether the change was made; it may be changed further."""
    fingerprints = Fingerprints.of(ranker)

    def check(folder: Path, change: Changes) -> bool:
        verify(folder)
        found = FolderIndex.open(folder, fingerprints)
        made = bool(found.texts_of(["new"]))
        expected = AFTER[change](candidates) if made else candidates
        assert_finds(found, ranker, expected)
        again = FolderIndex.open(folder, ranker)
        again.add([later := Candidate("later", "later")])
        assert_finds(again, ranker, [*expected, later])
        assert {path.name for path in folder.glob("[v.]*")} == {".lock", *(file.name for file in again.state.files)}
        return made

    return check


@pytest.mark.parametrize("happen", [full, pytest.param(interrupt, marks=pytest.mark.long)])
@CHANGES
def test_an_error_at_any_moment(folder, ranker, tmp_path, moments_of, is_before_or_after, change, happen):
    calls, numbers = moments_of(change), count()
    commit = calls.index("COMMIT")
    assert len(calls) > 30
    for at in range(len(calls)):
        for after in (False, True):
            shutil.copytree(folder, place := tmp_path / str(next(numbers)))
            index, watch = FolderIndex.open(place, ranker), Moments(at, after=after, happen=happen)
            failed = False
            try:
                with watch.watched():
                    change(index)
            except (KeyboardInterrupt, InputError):
                failed = True
            made = is_before_or_after(place, change)
            assert made == (not failed or (at, after) >= (commit, True)), (calls[at], after)
            assert len(index) == len(FolderIndex.open(place, ranker))  # the one that failed can be used as ever
            shutil.rmtree(place)


@CHANGES
def test_a_kill_at_any_moment(folder, ranker, tmp_path, is_before_or_after, change):
    made = []
    for at in count():
        shutil.copytree(folder, place := tmp_path / str(at))
        index = FolderIndex.open(place, ranker)
        if (child := os.fork()) == 0:
            try:
                with Moments(at, happen=lambda _: os.kill(os.getpid(), signal.SIGKILL)).watched():
                    change(index)
                os._exit(0)
            finally:
                os._exit(1)
        if (status := os.waitpid(child, 0)[1]) == 0:
            break
        assert status == signal.SIGKILL
        made.append(is_before_or_after(place, change))
        shutil.rmtree(place)
    assert made == sorted(made)  # never before a moment at which it was made already
    assert {False, True} == set(made)
    assert len(made) > 30
