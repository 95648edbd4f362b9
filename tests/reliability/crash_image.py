"""What a loss of power may leave of a change: every image of its files is opened, and has the old state or the new one.

A change runs once. Before and after each of its calls that sync, rename or remove, the folder is looked at: a file's
contents are certain once it was synced, its name once its folder was. What is not certain is drawn for each image: a
file may have its old contents, its new ones, or these torn at a multiple of 512 bytes, the rest zeros or missing; a
name may be undone.

It sees calls of Python, and SQLite's by what it promises: its log is certain after a COMMIT of a connection with
`synchronous` FULL (asked of it), the database after a checkpoint. It does not see the order in which SQLite writes the
pages inside of one statement, and not what a disk does that lies about a sync.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from polyencoder.errors import PolyencoderError
from polyencoder.index.folder.build import build_index
from tests.reliability.nth_call import OLD, Operation, Saving, operations
from tests.reliability.world import Budget, Counts, World, in_child, records

SECTOR = 512
UNCERTAIN = ("-shm",)  # SQLite makes its index of the log anew


Names = dict[tuple[int, str], int]
"""The file or folder, by its number, of each name in a folder."""


class Moment(NamedTuple):
    """A folder at one time: what its programs see, and what is certain to be on its disk."""

    call: str
    names: Names
    certain_names: Names
    contents: dict[int, bytes]
    certain: dict[int, bytes]
    folders: set[int]


class Disk:
    """Follows a folder while a change is made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder.stat().st_ino
        self.moments: list[Moment] = []
        self._contents: dict[int, bytes] = {}
        self._folders: set[int] = {self.root}
        self._handles: dict[int, int] = {}  # open, so that no number is given to another file
        self._certain_names: Names = {}
        self._certain: dict[int, bytes] = {}
        self._look()
        self._certain_names, self._certain = dict(self._names), dict(self._contents)  # as it was before the change

    def _look(self) -> None:
        self._names: Names = {}
        for path in self.folder.rglob("*"):
            if not path.name.endswith(UNCERTAIN):
                number = path.stat().st_ino
                self._names[path.parent.stat().st_ino, path.name] = number
                if number not in self._handles:
                    self._handles[number] = os.open(path, os.O_RDONLY)
                if path.is_dir():
                    self._folders.add(number)
                else:
                    self._contents[number] = path.read_bytes()
        for (parent, name), number in self._certain_names.items():  # SQLite syncs a database before its log goes
            database = self._names.get((parent, name.removesuffix("-wal")))
            is_gone = (parent, name) not in self._names or not self._contents.get(number)
            if name.endswith("-wal") and database and self._certain.get(number) and is_gone:
                self._certain[database] = self._contents[database]

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)

    def note(self, call: str) -> None:
        self._look()
        self.moments.append(self._moment(call))

    def _moment(self, call: str) -> Moment:
        states = (self._names, self._certain_names, self._contents, self._certain)
        return Moment(call, *map(dict, states), set(self._folders))

    def synced(self, path: Path) -> None:
        """After a sync of a file, or of a folder's names."""
        self._look()
        if not path.exists():
            return
        number = path.stat().st_ino
        if path.is_dir():
            for name in [name for name in self._certain_names if name[0] == number]:
                del self._certain_names[name]
            self._certain_names |= {name: file for name, file in self._names.items() if name[0] == number}
        elif number in self._contents:
            self._certain[number] = self._contents[number]

    def ran(self, connection: sqlite3.Connection, statement: str) -> None:
        """After a statement of SQLite that syncs: its log, then the database, before the log is emptied."""
        (full,) = sqlite3.Connection.execute(connection, "PRAGMA synchronous").fetchone()
        database = Path(sqlite3.Connection.execute(connection, "PRAGMA database_list").fetchall()[0][2])
        log = Path(f"{database}-wal")
        certain, writes_log = dict(self._certain), statement.startswith(("COMMIT", "VACUUM"))
        self._look()
        now = self._moment(f"in {statement}")._replace(certain=certain)
        if not writes_log and log.exists() and (number := log.stat().st_ino) in certain:
            now.contents[number] = certain[number]
        self.moments.append(now)
        if full == 2:
            for path in (log, log.parent) if writes_log else (database, log):
                self.synced(path)
        self.note(f"after {statement}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> Any:
                result = super().execute(statement, *values)
                if statement.startswith(("COMMIT", "PRAGMA wal_checkpoint", "PRAGMA journal_mode = WAL", "VACUUM")):
                    disk.ran(self, statement)
                return result

        def fsync(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            disk.note(f"before fsync {path.name}")
            disk.synced(path)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(sqlite3, "connect", partial(sqlite3.connect, factory=Connection)))
            stack.enter_context(mock.patch.object(os, "fsync", fsync))
            for name in ("replace", "rename", "unlink", "link"):
                original = getattr(os, name)

                def call(*args: Any, _name: str = name, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
                    disk.note(f"before {_name}")
                    result = _original(*args, **kwargs)
                    disk.note(f"after {_name}")
                    return result

                stack.enter_context(mock.patch.object(os, name, call))
            yield


def image(moment: Moment, disk: Disk, folder: Path, draw: random.Random) -> str:
    """Writes what a loss of power at this moment may leave; says what was undone or torn."""
    share = draw.choice((0.0, 0.5, 1.0))  # of what is uncertain, the part that reaches the disk
    names, losses = dict(moment.certain_names), []
    for file in {*moment.names.values(), *moment.certain_names.values()}:  # a rename is done as a whole, or not at all
        now, certain = ({name for name, n in names.items() if n == file} for names in moment[1:3])
        if now == certain or (not now and all(name in moment.names for name in certain)):  # another took its name
            continue
        if draw.random() < share:
            names = {name: number for name, number in names.items() if name not in certain - now or number != file}
            names |= dict.fromkeys(now, file)
        else:
            losses.append(f"{', '.join(name for _, name in now or certain)} undone")
    paths = {disk.root: folder}
    while len(paths) < len({*paths, *(number for (parent, _), number in names.items() if parent in paths)}):
        paths |= {number: paths[parent] / name for (parent, name), number in names.items() if parent in paths}
    for number, path in paths.items():
        if number in moment.folders:
            path.mkdir(parents=True, exist_ok=True)
    for (parent, name), number in names.items():
        if parent not in paths or number in moment.folders:
            continue
        content, certain = moment.contents[number], moment.certain.get(number, b"")
        if content != certain and draw.random() >= share:
            torn = draw.choice(("old", "cut", "zeros", "holes"))
            losses.append(f"{name} {torn}")
            content = certain if torn == "old" else torn_content(content, certain, torn, draw)
        (paths[parent] / name).write_bytes(content)
    return ", ".join(losses) or "nothing lost"


def torn_content(new: bytes, old: bytes, how: str, draw: random.Random) -> bytes:
    """Each sector is the new one, or what was there: up to a place, or anywhere. What was not written stays."""
    length = max(len(new), len(old))
    cut, sectors = SECTOR * draw.randint(0, length // SECTOR), []
    for at in range(0, length, SECTOR):
        after, before = new[at : at + SECTOR], old[at : at + SECTOR]
        is_new = draw.random() < 0.5 if how == "holes" else at < cut
        lost = bytes(len(after)) if how == "zeros" and before != after else before
        sectors.append(after if is_new else lost)
        if len(sectors[-1]) < SECTOR and how == "holes":
            sectors[-1] = sectors[-1].ljust(len(after), b"\0")
    return b"".join(sectors)


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    world, counts, draw = World(seed=seed), Counts(), random.Random(seed)
    build_index(built := folder / "built", records(OLD), world.ranker, shard_size=4)
    disks: dict[str, Disk] = {}
    for name, operation in (by_name := operations(world)).items():
        operation.begin(here := folder / "disk", built)
        here.mkdir(exist_ok=True)
        disk = Disk(here)
        with disk.watched():
            operation.make(here)
        disk.note("at the end")
        disk.close()
        disks[name] = disk
        shutil.rmtree(here)
    for number in budget(counts):
        name, disk = draw.choice([*disks.items()])
        at = draw.randrange(len(disk.moments))
        moment = disk.moments[at]
        (here := folder / str(number)).mkdir()
        losses, operation, total = image(moment, disk, here, draw), by_name[name], len(disk.moments)
        counts.count(name)
        ended = in_child(partial(reopened, operation, here), seconds=60)
        where = f"{name}: {moment.call} ({at} of {total}), {losses}"
        if ended.signal:
            counts.fail("signals", f"{where}: signal {ended.signal}")
        elif "left behind" in ended.text and isinstance(operation, Saving):
            counts.count("temporary files left beside a model")  # until they are an hour old
        elif ended.failed or ended.text not in ("old", "new"):
            counts.fail("lost", f"{where}: {ended.text}")
        elif at == total - 1 and ended.text == "old":
            counts.fail("lost", f"{where}: it had returned, and is undone")
        shutil.rmtree(here)
    counts.of["moments"] = sum(len(disk.moments) for disk in disks.values())
    return counts


def reopened(operation: Operation, folder: Path) -> str:
    """The state of an image, after which the next change works."""
    state = operation.state(folder)
    if state not in ("old", "new"):
        return state
    try:
        return operation.next_change(folder) or state
    except PolyencoderError as error:
        return f"{state}, but cannot be changed: {error}"
