"""A change of an index: an uncommitted transaction, which writes new files and names them when it is committed.

It is invisible before the commit and permanent after it. Files that the database does not name are ignored, and removed
by the next change.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.faiss.file import FaissFile, TunedSettings, build_faiss
from polyencoder.index.faiss.kinds import choose
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.faiss.tuning import sample, tune
from polyencoder.index.folder.catalogue import Catalogue, File
from polyencoder.index.folder.database import connect
from polyencoder.index.folder.files import DATABASE, LOCK, META, check_no_links, is_ours, wrap_io_errors
from polyencoder.index.folder.shards import encode_rows
from polyencoder.index.meta import IndexMeta
from polyencoder.index.token_rows import TokenRows
from polyencoder.index.vectors import (
    MappedFile,
    Vectors,
    get_vectors_file,
    is_whole,
    list_side_files,
    map_file,
    parse_first_row,
    write_vectors,
)
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.rows import QuantizedRows
from polyencoder.storage.digests import compute_file_digest, compute_fingerprint
from polyencoder.storage.signatures import sign_file

T = TypeVar("T")


class Change:
    """A transaction of the database of an index whose lock this process has, open until `publish` or `close`."""

    def __init__(self, folder: Path, ranker: TextRanker | None) -> None:
        self.folder = folder
        self._ranker = ranker
        check_no_links(folder)
        self._connection = connect(folder / DATABASE)
        try:
            self._connection.execute("PRAGMA synchronous = FULL")  # commits survive a power failure
            self._connection.execute("BEGIN IMMEDIATE")
            self.catalogue = Catalogue(self._connection, folder)
            self.meta = IndexMeta.from_json(self.catalogue.read_description(), folder)
            """The description, written when it is published."""
        except BaseException:
            self._release()
            raise
        self._before, self._compacted = self.meta, False
        self.closed = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Adds the operations of the block to the change, or undoes them after an error."""
        if not self._connection.in_transaction:
            raise InputError("this change has failed and was undone; begin another one", where=self.folder)
        with wrap_io_errors(self.folder):
            before, words = self.meta, self.catalogue.words
            self._connection.execute("SAVEPOINT step")
        try:
            yield
        except BaseException:
            self.meta = before
            if words is None:
                self.catalogue.drop_words()
            if self._connection.in_transaction:  # a full disk may have rolled back everything
                self._connection.execute("ROLLBACK TO step")
                self._connection.execute("RELEASE step")
            raise
        with wrap_io_errors(self.folder):
            self._connection.execute("RELEASE step")

    def apply_each(self, items: Iterable[T], enter: Callable[[Catalogue, T], int]) -> int:
        """Adds or removes items one after the other; `enter` returns the change of the number of entries.

        Returns how many of the items changed something.
        """
        changed = growth = 0
        for item in items:  # errors of the iterable are the caller's
            before = self._connection.total_changes
            with wrap_io_errors(self.folder):
                growth += enter(self.catalogue, item)
            changed += self._connection.total_changes > before
        if changed:
            self.meta = replace(self.meta, entries=self.meta.entries + growth, candidates=None, version=self._version)
        return changed

    def compact(self) -> int:
        """Removes the dead rows, merges small files, and drops the FAISS index; returns the number of dead rows."""
        vectors = self._open_vectors()
        living, size = self._list_living(), self.meta.shard_size
        pieces = {i * size: rows for i, rows in enumerate(_cut(living, size))}
        existing = {
            first: vectors.find_file(first, len(rows))
            if first == rows[0] and first + len(rows) - 1 == rows[-1]
            else None
            for first, rows in pieces.items()
        }
        dead = len(vectors) - len(living)
        if not dead and None not in existing.values():
            return 0
        self.catalogue.compact()
        self._forget_faiss()
        self._forget(*vectors.names)
        for first, rows in pieces.items():
            self._add_vectors(first, len(rows), partial(_read_stored, vectors, rows), existing=existing[first])
        self.meta = replace(self.meta, faiss=None, candidates=None, version=self._version)
        self._compacted = True
        return dead

    def add_words(self) -> bool:
        """Adds the words of all texts, unless the index has words; returns whether it had none."""
        if added := self.catalogue.add_words():
            self.meta = replace(self.meta, version=self._version)
        return added

    def build_faiss(self, kind: str, **overrides: int | str) -> None:
        """See `polyencoder.index.faiss.file.build_faiss`."""
        if rows := self.catalogue.rows:  # else an error below
            # before added texts are encoded; the type of vectors decides nothing that could be refused
            choose(kind, overrides, rows=rows, dim=self.meta.dim, dtype="float32")
        faiss = build_faiss(self._open_vectors(), kind=kind, **overrides)
        self._forget_faiss()
        self._add_files(self.folder / faiss.file)
        self._describe_faiss(faiss)

    def trust_faiss(self) -> None:
        """Signs the FAISS index's file. ConfigError if there is no FAISS index, CheckpointError for a damaged one."""
        if (faiss := self.meta.faiss) is None:
            raise ConfigError(f"{self.folder}: has no FAISS index to trust", argument="trust_faiss")
        path = self.folder / faiss.file
        checksums = {file.name: file.checksum for file in self.catalogue.list_files()}
        if compute_checksum(path) != checksums.get(faiss.file):
            raise CheckpointError(f"{path}: damaged, its checksum has changed; build it again with build_faiss")
        self._describe_faiss(replace(faiss, signature=sign_file(path)))

    def tune_faiss(self, contexts: Sequence[Contexts], **settings: Any) -> TunedSettings:
        """Tunes the FAISS index (see `faiss.tuning.tune`) for the living rows. ConfigError without one."""
        if (faiss := self.meta.faiss) is None:
            raise ConfigError(f"{self.folder}: has no FAISS index to measure; build one with it", argument="faiss")
        vectors, allowed = self._open_vectors(), self.catalogue.select_allowed()
        tuned = tune(FaissSearch(faiss, vectors), contexts, allowed=allowed, **settings)
        self._describe_faiss(replace(faiss, tuned=tuned))
        return tuned

    def sample_texts(self, n: int) -> list[str]:
        """Samples up to `n` of the texts after the change, always the same ones."""
        return list(self.catalogue.get_row_texts(sample(self._list_living().tolist(), n)).values())

    def publish(self) -> None:
        """Commits the change, if there is any."""
        with self.step():
            self._encode()
        if self.meta == self._before:
            return
        if (num_vectors := sum(file.rows for file in self.catalogue.list_files())) != self.catalogue.rows:
            raise CheckpointError(
                f"{self.folder}: {num_vectors} vectors of {self.catalogue.rows} texts; nothing was changed"
            )
        self.meta = replace(self.meta, rows=num_vectors)
        text = self.meta.to_json()
        IndexMeta.from_json(text, self.folder)  # a state that cannot be opened is not committed
        self.catalogue.describe(text)
        self._connection.execute("COMMIT")
        # Committed. The rest is housekeeping, which may fail.
        with suppress(OSError, sqlite3.Error):
            (self.folder / META).write_text(self.meta.to_json(), encoding="utf-8")
            if self._compacted:
                self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA busy_timeout = 0")  # does not wait for readers
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self, *, keep: bool = False) -> None:
        """Ends the change and undoes what was not committed. `keep` leaves its files to a change that repeats it."""
        try:
            with suppress(sqlite3.Error, OSError):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if not keep:
                    self._remove_unused()
        finally:
            self._release()

    def _release(self) -> None:
        """Closes the connection, and ends its transaction first: the lock would outlive it while a cursor is alive."""
        with suppress(sqlite3.Error):
            self._connection.rollback()
        self._connection.close()
        self.closed = True

    def _remove_unused(self) -> None:
        """Removes files that the database does not name; readers of an older state have its files open."""
        used = {
            DATABASE,
            f"{DATABASE}-wal",
            f"{DATABASE}-shm",
            META,
            LOCK,
            *(file.name for file in self.catalogue.list_files()),
        }
        for name in os.listdir(self.folder):
            if is_ours(name) and name not in used:
                (self.folder / name).unlink(missing_ok=True)

    @property
    def _version(self) -> int:
        return self._before.version + 1

    def _list_living(self) -> Array:
        """The rows with entries: int64, ascending."""
        mask = self.catalogue.select_allowed()
        return np.arange(self.catalogue.rows) if mask is None else np.flatnonzero(mask)

    def _open_vectors(self) -> Vectors:
        """The vectors of all texts; encodes those that were added."""
        self._encode()
        names = [file.name for file in self.catalogue.list_files() if file.rows]
        return Vectors.open(self.folder, names, dim=self.meta.dim, dtype=self.meta.dtype, tokens=self.meta.tokens)

    def _encode(self) -> None:
        """Writes files for the texts without vectors, merged with small files before them.

        Every file is at least twice as long as the next one, unless they cannot be merged. So single additions make
        about ten small files at most, and are copied as often.
        """
        files = [file for file in self.catalogue.list_files() if file.rows]
        done, rows, size = sum(file.rows for file in files), self.catalogue.rows, self.meta.shard_size
        for start in range(done, rows, size):
            first, stop = start, min(start + size, rows)
            merged: list[str] = []
            while files and files[-1].rows < 2 * (stop - first) and stop - first + files[-1].rows <= size:
                merged.insert(0, files.pop().name)
                first = parse_first_row(merged[0])
            files = []  # the next ones follow full ones
            self._forget(*merged)
            self._add_vectors(first, stop - first, partial(self._join, merged, start, stop))

    def _join(self, merged: list[str], start: int, stop: int) -> MappedFile:
        """The vectors of merged files, then of the texts of these rows, which it encodes."""
        if self._ranker is None:
            raise InputError(
                "was opened without its model, which encodes new texts; open it with a Ranker", where=self.folder
            )
        texts, meta = self.catalogue.list_texts(start, stop), self.meta
        parts = [map_file(self.folder / name, dim=meta.dim, dtype=meta.dtype, tokens=meta.tokens) for name in merged]
        parts.append(encode_rows(self.folder, self._ranker.encoder, meta, texts))
        tokens = [part.tokens for part in parts if part.tokens is not None]
        return MappedFile(
            np.concatenate([part.rows for part in parts]),
            QuantizedRows.concatenate([part.quantized for part in parts]),
            TokenRows.concatenate(tokens) if tokens else None,
        )

    def _add_vectors(
        self, first: int, rows: int, make: Callable[[], MappedFile], *, existing: str | None = None
    ) -> None:
        """Adds the file of these rows: an existing one (`existing`, or left by a kill), or one written by `make`."""
        meta = self.meta
        texts = self.catalogue.list_texts(first, first + rows)
        tag = compute_fingerprint([meta.build, *texts])[:16]
        path = get_vectors_file(self.folder, first, tag=tag) if existing is None else self.folder / existing
        if existing is None and not is_whole(path, rows=rows, dim=meta.dim, dtype=meta.dtype, tokens=meta.tokens):
            write_vectors(self.folder, first, *make(), tag=tag)
        self._add_files(path, rows)

    def _add_files(self, path: Path, rows: int = 0) -> None:
        for file in build_file_records(path, rows):
            self.catalogue.add_file(file)

    def _describe_faiss(self, faiss: FaissFile) -> None:
        self.meta = replace(self.meta, faiss=faiss, version=self._version)

    def _forget_faiss(self) -> None:
        if self.meta.faiss is not None:
            self.catalogue.forget_files([self.meta.faiss.file])

    def _forget(self, *names: str) -> None:
        self.catalogue.forget_files(
            [*names, *(path.name for name in names for path in list_side_files(Path(name)).values())]
        )


def build_file_records(path: Path, rows: int = 0) -> list[File]:
    """The database's records of a file and what is beside it, if anything; `rows` is 0 for files without vectors."""
    side_files = [file for file in list_side_files(path).values() if file.exists()] if rows else []
    files = [(path, rows), *((file, 0) for file in side_files)]
    return [File(path.name, n, path.stat().st_size, compute_checksum(path)) for path, n in files]


def compute_checksum(path: Path, *, progress: Callable[[int], object] = int) -> str:
    """A digest of a file's contents. `progress` is called with the number of bytes read since the last call."""
    return compute_file_digest(path, new=partial(hashlib.blake2b, digest_size=16), progress=progress)


def _cut(rows: Array, size: int) -> list[Array]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _read_stored(vectors: Vectors, rows: Array) -> MappedFile:
    return MappedFile(*vectors.read_stored(rows), vectors.read_token_rows(rows))
