"""Every call that uses the disk fails in turn: the old state stays or the new one is there, and the next change works.

The calls: open, a file's write, fsync, replace, link, unlink, rmtree, each statement of SQLite, np.save, and what
safetensors, torch and FAISS write themselves. Each fails before its work, and after it.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import faiss
import numpy as np
import safetensors.torch
import torch

from polyencoder.checkpoint import check_folder, read_folder_config, read_states, read_stored_weights, write_states
from polyencoder.errors import PolyencoderError
from polyencoder.export.folder import export_folder
from polyencoder.index import Candidate, FolderIndex
from polyencoder.index.folder.build import build_index
from polyencoder.storage.files import reporting_write_errors
from tests.reliability.world import TEXTS, Budget, Counts, World, entries, in_child, records, tiny_ranker

OLD = entries(TEXTS[:9])
ADDED = entries(TEXTS[20:23], start=20)
ERRORS: dict[str, Callable[[bool], Any]] = {
    "EIO": lambda sql: sqlite3.OperationalError("disk I/O error") if sql else OSError(errno.EIO, "I/O error"),
    "ENOSPC": lambda sql: sqlite3.OperationalError("disk is full") if sql else OSError(errno.ENOSPC, "full"),
    "KeyboardInterrupt": lambda sql: KeyboardInterrupt(),
    "MemoryError": lambda sql: MemoryError(),
    "SIGKILL": lambda sql: os.kill(os.getpid(), signal.SIGKILL),  # in a process of its own
}
PATCHED: list[tuple[Any, str]] = [
    *((os, name) for name in ("open", "replace", "link", "unlink", "rmdir", "mkdir", "rename", "remove", "chmod")),
    *((Path, name) for name in ("unlink", "write_text", "write_bytes", "mkdir", "chmod")),
    (np, "save"), (safetensors.torch, "save_file"), (torch, "save"), (faiss, "write_index"), (shutil, "rmtree"),
]  # fmt: skip


class Calls:
    """Counts the calls that use the disk; the one of this number raises, before or after its work."""

    def __init__(self, at: int = -1, *, after: bool = False, error: Callable[[bool], BaseException] = print) -> None:
        self.at, self.after, self.error = at, after, error
        self.names: list[str] = []

    def __call__(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number = len(self.names)
        self.names.append(name)
        if number == self.at and not self.after:
            raise self.error(name.startswith("SQL"))
        result = original(*args, **kwargs)
        if number == self.at:
            raise self.error(name.startswith("SQL"))
        return result

    @contextmanager
    def watched(self) -> Iterator[None]:
        calls, plain_open = self, builtins.open

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> Any:
                return calls(f"SQL {sql[:40]}", partial(sqlite3.Connection.execute, self), sql, *values)

        def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax+"):
                return plain_open(path, mode, *args, **kwargs)
            file = calls("open to write", plain_open, path, mode, *args, **kwargs)
            with suppress(AttributeError):  # of a file in C: its `write` cannot be replaced, but those of Python can
                file.write = partial(calls, "write", file.write)
            return file

        with ExitStack() as stack:
            patch = lambda *args: stack.enter_context(mock.patch.object(*args))  # noqa: E731
            patch(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
            patch(os, "fsync", partial(self, "fsync", lambda _: None))  # nothing is lost here: see `crash_image`
            for owner, name in PATCHED:
                original = getattr(owner, name)
                patch(owner, name, lambda *args, _call=(name, original), **kwargs: self(*_call, *args, **kwargs))
            for owner in (builtins, io):
                patch(owner, "open", opened)
            yield


class Operation:
    """Something that changes a folder; `make` does it, `state` says what is there: "old", "new", or what is wrong."""

    def __init__(
        self, world: World, make: Callable[[Path], object], new: dict[str, str], *, begun: bool = True
    ) -> None:
        self.world, self._make, self.new, self.begun = world, make, new, begun

    def make(self, folder: Path) -> None:
        self._make(folder)

    def begin(self, folder: Path, built: Path) -> None:
        if self.begun:
            shutil.copytree(built, folder)

    def state(self, folder: Path) -> str:
        if not self.begun and not (folder / "index.sqlite").exists():
            return "old"
        if (problem := self.world.problem(folder, *([OLD] if self.begun else []), self.new)) is not None:
            return problem
        with open_index(folder, self.world.fingerprints) as index:
            return "new" if index.get_texts({*OLD, *self.new}) == self.new else "old"

    def next_change(self, folder: Path) -> str | None:
        """What is wrong after the same operation again, and another one."""
        with suppress(PolyencoderError):  # what is removed cannot be removed twice
            self.make(folder)
        with open_index(folder, self.world.ranker) as index:
            index.add([Candidate("later", TEXTS[30])])
        problem = self.world.problem(folder, self.new | {"later": TEXTS[30]})
        return problem or (f"{left} left behind" if (left := self.world.leftovers(folder)) else None)


class Saving(Operation):
    """A model or a checkpoint that replaces an older one."""

    def __init__(self, write: Callable[[Path, int], object], read: Callable[[Path], int]) -> None:
        self._write, self._read = write, read

    def make(self, folder: Path) -> None:
        self._write(folder, 1)

    def begin(self, folder: Path, built: Path) -> None:
        folder.mkdir()
        self._write(folder, 0)

    def state(self, folder: Path) -> str:
        try:
            return ("old", "new")[self._read(folder)]
        except Exception as error:
            return f"cannot be read: {error!r}"

    def next_change(self, folder: Path) -> str | None:
        self.make(folder)
        names = {path.name for path in folder.rglob("*")}
        left = [name for name in names if name.endswith((".part", ".staging")) or name.startswith(".")]
        return f"{left} left behind" if left else None if self._read(folder) == 1 else "not written"


@contextmanager
def open_index(folder: Path, ranker: Any) -> Iterator[FolderIndex]:
    index = FolderIndex.open(folder, ranker)
    try:
        yield index
    finally:
        index.close()


def operations(world: World) -> dict[str, Operation]:
    def change(method: str, *args: Any, **kwargs: Any) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            with open_index(folder, world.ranker) as index:
                getattr(index, method)(*args, **kwargs)

        return make

    def everything(folder: Path) -> None:
        with open_index(folder, world.ranker) as index, index.changing():
            index.remove(["id 0", "id 1"], missing_ok=True)
            index.put(records(ADDED | {"id 2": TEXTS[40]}))
            index.compact()

    rankers = [tiny_ranker(seed=seed) for seed in (1, 2)]
    sums = [float(sum(tensor.sum() for tensor in ranker.model.state_dict().values())) for ranker in rankers]

    def which(folder: Path) -> int:
        check_folder(folder)
        weights = read_stored_weights(folder, read_folder_config(folder))
        return int(np.argmin(np.abs(np.subtract(sums, float(sum(tensor.sum() for tensor in weights.values()))))))

    both = OLD | ADDED
    return {
        "build": Operation(world, lambda folder: build_index(folder, records(OLD), world.ranker, shard_size=4), OLD,
                           begun=False),
        "build with words": Operation(
            world, lambda folder: build_index(folder, records(OLD), world.ranker, shard_size=4, words=True), OLD,
            begun=False),
        "add": Operation(world, change("add", records(ADDED)), both),
        "remove": Operation(world, change("remove", ["id 0", "id 5"], missing_ok=True),
                            {id_: text for id_, text in OLD.items() if id_ not in ("id 0", "id 5")}),
        "update": Operation(world, change("update", records({"id 3": TEXTS[40]})), OLD | {"id 3": TEXTS[40]}),
        "compact": Operation(world, change("compact"), OLD),
        "words": Operation(world, change("add_words"), OLD),
        "FAISS": Operation(world, change("build_faiss", "ivf-flat", nlist=1, storage="float32"), OLD),
        "all of these": Operation(
            world, everything, {id_: text for id_, text in both.items() if id_ not in ("id 0", "id 1")}
            | {"id 2": TEXTS[40]}),
        "save": Saving(lambda folder, n: rankers[n].save_pretrained(folder), which),
        "export": Saving(lambda folder, n: export_folder(rankers[n], folder), which),
        "checkpoint": Saving(write_checkpoint,
                             lambda folder: int(read_states(folder / "checkpoint.pt")["model"]["n"][0, 0])),
    }  # fmt: skip


def write_checkpoint(folder: Path, n: int) -> None:
    with reporting_write_errors(folder):
        write_states(folder / "checkpoint.pt", {"model": {"n": torch.full((9, 9), n)}})


def run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    """All faults in a random order, in which the operations take turns."""
    with mock.patch.object(os, "fsync"):  # nothing is lost here
        return _run(seed=seed, budget=budget, folder=folder)


def _run(*, seed: int, budget: Budget, folder: Path) -> Counts:
    world, counts, draw = World(seed=seed), Counts(), random.Random(seed)
    build_index(built := folder / "built", records(OLD), world.ranker, shard_size=4)
    by_operation = []
    for name, operation in (by_name := operations(world)).items():
        operation.begin(here := folder / "counted", built)
        with (calls := Calls()).watched():
            operation.make(here)
        shutil.rmtree(here)
        all_of_it = list(product([name], range(len(calls.names)), (False, True), ERRORS))
        by_operation.append(draw.sample(all_of_it, len(all_of_it)))
    faults = [fault for turn in zip_longest(*by_operation) for fault in turn if fault]
    for number in Budget(budget.seconds, min(budget.trials, len(faults)))(counts):
        name, at, after, error = faults[number]
        operation, calls = by_name[name], Calls(at, after=after, error=ERRORS[error])
        operation.begin(here := folder / str(number), built)
        counts.count(name)
        raised: BaseException | None = None

        def make(operation: Operation = operation, calls: Calls = calls, here: Path = here) -> None:
            with calls.watched():
                operation.make(here)

        try:
            if error != "SIGKILL":
                make()
            elif in_child(make).signal:
                raised = InterruptedError()
        except BaseException as caught:
            raised = caught
        call = calls.names[at] if at < len(calls.names) else "in a child" if error == "SIGKILL" else "not reached"
        fault = f"{name}: {error} {'after' if after else 'at'} call {at} ({call})"
        if not isinstance(raised, (KeyboardInterrupt, MemoryError, InterruptedError, PolyencoderError, type(None))):
            counts.fail("wrong", f"{fault}: a traceback, not a line: {raised!r}")
        try:
            if (state := operation.state(here)) not in ("old", "new") or (raised is None and state == "old"):
                counts.fail("lost", f"{fault}: {state}")
            elif (problem := operation.next_change(here)) and not (
                error == "SIGKILL" and "left behind" in problem and isinstance(operation, Saving)
            ):  # what a kill leaves beside a model goes once it is an hour old
                counts.fail("lost", f"{fault}: then {problem}")
        except Exception as caught:
            counts.fail("lost", f"{fault}: then {caught!r}")
        shutil.rmtree(here, ignore_errors=True)
    counts.of["all faults"] = len(faults)
    return counts
