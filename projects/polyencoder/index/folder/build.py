"""Builds an index folder of any number of candidates, in bounded memory; a killed build resumes.

Two passes. The first streams candidates into the database, which merges equal texts. The second encodes the texts in
shards of some ten thousand rows, each a file. Only one shard is in memory. If candidates have vectors, the first pass
writes the shards, and nothing is encoded.

A killed build resumes when it is started again. The first pass ends with the database `unfinished.sqlite`; a shard's
file is complete or missing. At the end a transaction names the files, and the database is renamed. Everything is synced
to disk before it is used.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import ConfigError, InputError, PolyencoderError
from polyencoder.guesses import change_options
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.entries import Candidate, Record, check_records
from polyencoder.index.faiss.kinds import choose, parse_faiss
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.change import build_file_records
from polyencoder.index.folder.database import Database, connect, connect_to_fill
from polyencoder.index.folder.files import (
    DATABASE,
    LOCK,
    META,
    UNFINISHED,
    check_no_links,
    check_only_ours,
    locked,
    wrap_io_errors,
)
from polyencoder.index.folder.precomputed import PrecomputedShards
from polyencoder.index.folder.shards import encode_here, encode_in_processes, list_missing, list_shards
from polyencoder.index.meta import Fingerprints, IndexMeta, get_separable_model
from polyencoder.index.precomputed import check_vectors
from polyencoder.index.token_rows import StoredTokens
from polyencoder.progress import create_progress
from polyencoder.storage.files import atomic_write, explain_no_folder, fsync


def build_index(
    folder: str | os.PathLike[str],
    candidates: Iterable[Record],
    ranker: TextRanker | Fingerprints,
    options: IndexOptions | None = None,
    *,
    model_name: str = "",
    progress: bool | None = False,
    **changes: Any,
) -> None:
    """Encodes candidates into an index folder, or finishes one begun with the same candidates and model.

    The vectors do not depend on restarts, nor on the number of workers if each has as many threads. A finished index is
    unchanged.

    Args:
        folder: created if missing.
        candidates: `Candidate` records, texts, or dicts with `text`, `id`, `metadata` and optionally `vector`;
            read once, and never all in memory.
        ranker: a bi- or poly-encoder; or, if all candidates have vectors, their encoder's fingerprints.
        options: `faiss` is not built here, nor its `recall` measured, but its parameters are checked before anything is
            encoded.
        model_name: where the model was loaded from, for messages about the index.

    Raises:
        ConfigError: a setting is out of range, or FAISS's parameters do not fit the candidates.
        InputError: there are no candidates, one is invalid, different candidates have the same id, a vector is not this
            model's (see `index.precomputed.check_vectors`), or the folder holds something else or cannot be written.
        PolyencoderError: a worker was killed.
    """
    folder, options = Path(folder), change_options(options or IndexOptions(), changes)
    options.check_engine(None, folder)
    shard_size, workers = options.shard_size, options.workers
    checked, split = check_records(candidates), options.split_for(ranker)
    if split is not None:
        assert not isinstance(ranker, Fingerprints)
        checked = split.split_candidates(checked, ranker.text)
    records, dim = check_vectors(checked, ranker)
    tokens = None
    if dim is not None or isinstance(ranker, Fingerprints):
        if workers != 1:
            raise ConfigError(
                "workers is for texts that are encoded, and these candidates bring vectors: leave it out",
                argument="workers",
            )
        if options.store_tokens is not None:
            raise ConfigError(
                "store_tokens is for texts that are encoded, and these candidates bring vectors: leave these out",
                argument="store_tokens",
            )
    elif options.store_tokens is not None:
        tokens = StoredTokens.from_model(get_separable_model(ranker), options.store_tokens)
    settings = {"dtype": options.dtype, "shard_size": shard_size, "build": secrets.token_hex(8), "tokens": tokens}
    plan = IndexMeta.from_ranker(ranker, model_name=model_name, dim=dim, split=split, **settings)
    with ExitStack() as stack:
        stack.enter_context(_create_folder(folder))
        stack.enter_context(locked(folder))
        precomputed = None if dim is None else PrecomputedShards(folder, plan)
        plan = _enter_candidates(folder, records, plan, precomputed, options, ranker=ranker, progress=progress)
        if (folder / DATABASE).exists():
            return
        with wrap_io_errors(folder):
            check_no_links(folder)
            shards = list_missing(folder, plan)
            if precomputed is not None and shards:
                raise InputError(f"{folder}: damaged, a file of vectors is missing; remove the folder")
            done = plan.rows - sum(min(shard_size, plan.rows - shard) for shard in shards)
            with create_progress(step="encoding", total=plan.rows, done=done, unit="texts", show=progress) as bar:
                if isinstance(ranker, Fingerprints) or not shards:
                    pass
                elif (workers := min(workers, len(shards))) == 1:
                    encode_here(folder, ranker.encoder, plan, shards, advance=bar.update)
                else:
                    encode_in_processes(folder, ranker, plan, shards, workers=workers, advance=bar.update)
            _finish(folder, plan)


def compute_candidates_digest(candidates: Iterable[Record]) -> str:
    """`IndexMeta.candidates` of an index that was built from these candidates and never changed."""
    digest = hashlib.blake2b(digest_size=16)
    for candidate in check_records(candidates):
        digest.update(_serialize(candidate))
    return digest.hexdigest()


def _serialize(candidate: Candidate) -> bytes:
    return repr(candidate[:3]).encode() + (b"" if candidate.vector is None else candidate.vector.tobytes())


def _enter_candidates(
    folder: Path,
    candidates: Iterator[Candidate],
    plan: IndexMeta,
    precomputed: PrecomputedShards | None,
    options: IndexOptions,
    *,
    ranker: TextRanker | Fingerprints,
    progress: bool | None,
) -> IndexMeta:
    """The first pass, or a check that an earlier one had the same candidates."""
    digest = hashlib.blake2b(digest_size=16)

    def check_faiss(rows: int) -> None:
        if options.faiss is not None:
            choose(*parse_faiss(options.faiss), rows=rows, dim=plan.dim, dtype="float32")

    def read() -> Iterator[Candidate]:
        with create_progress(step="reading", unit="candidates", show=progress) as bar:
            for candidate in candidates:
                digest.update(_serialize(candidate))
                bar.update()
                yield candidate

    with wrap_io_errors(folder):
        begun, has_words = _read_begun(folder)
    if begun is not None:
        _check_same(begun, plan, ranker=ranker, folder=folder)
        if options.words and not has_words:
            raise InputError(
                f"{folder}: has an index without words; `polyencoder update --words` adds them once it is finished. Or "
                "give another folder, or remove it"
            )
        for _ in read():
            pass
        if begun.candidates != digest.hexdigest():
            raise InputError(f"{folder}: has an index of other candidates; give another folder, or remove it")
        check_faiss(begun.rows)
        return begun
    with ExitStack() as stack:
        with wrap_io_errors(folder):
            _remove_all(folder)
            path = stack.enter_context(atomic_write(folder / UNFINISHED))
            if precomputed is not None:
                stack.enter_context(precomputed)  # closed before the database, which relies on its files, is renamed
            connection = stack.enter_context(closing(connect_to_fill(path, words=options.words)))
            connection.execute("BEGIN")
        catalogue, entries = Catalogue(connection, folder), 0
        for candidate in read():  # errors of the iterable are the caller's
            with wrap_io_errors(folder):
                entries += catalogue.put(candidate, index=False)
                if precomputed is not None:
                    precomputed.put(catalogue.get_row(candidate.text), candidate)
        if entries == 0:
            raise InputError(f"{folder}: not made, as there are no candidates: the input is empty")
        with wrap_io_errors(folder):
            check_faiss(catalogue.rows)
            catalogue.create_indexes()
            if precomputed is not None:
                precomputed.flush()
            plan = replace(plan, rows=catalogue.rows, entries=entries, candidates=digest.hexdigest())
            catalogue.describe(plan.to_json())
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")
            stack.close()  # the database gets its name here, where disk errors are wrapped
    return plan


def _read_begun(folder: Path) -> tuple[IndexMeta | None, bool]:
    """The description of an existing index, finished or not; and whether it has words."""

    def read(catalogue: Catalogue) -> tuple[IndexMeta, bool]:
        return IndexMeta.from_json(catalogue.read_description(), folder), catalogue.words is not None

    if (folder / DATABASE).exists():
        with Database(folder).snapshot() as catalogue:
            return read(catalogue)
    if not (folder / UNFINISHED).exists():
        return None, False
    with closing(connect(folder / UNFINISHED)) as connection:  # replays the log that a kill has left
        return read(Catalogue(connection, folder))


def _check_same(begun: IndexMeta, plan: IndexMeta, *, ranker: TextRanker | Fingerprints, folder: Path) -> None:
    begun.check_model(ranker, where=folder)
    begun.check_split(plan.split, where=folder)
    if begun.tokens != plan.tokens:
        how = "without" if begun.tokens is None else "with other"
        raise InputError(f"{folder}: has an index {how} token vectors; give another folder, or remove it")
    for name in ("dtype", "shard_size"):
        if (stored := getattr(begun, name)) != (here := getattr(plan, name)):
            raise InputError(
                f"{folder}: has an index with {name} {stored}, not {here}; give another folder, or remove it"
            )
    if begun.candidates is None:
        raise InputError(f"{folder}: has an index that was changed after it was built; add to it, or remove it")


def _finish(folder: Path, plan: IndexMeta) -> None:
    files = [file for path, rows in list_shards(folder, plan).values() for file in build_file_records(path, rows)]
    with closing(connect(folder / UNFINISHED)) as connection:
        catalogue = Catalogue(connection, folder)
        connection.execute("BEGIN IMMEDIATE")
        catalogue.forget_files(file.name for file in catalogue.list_files())  # of a killed attempt
        for file in files:
            catalogue.add_file(file)
        connection.execute("COMMIT")
        if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # the log would not be renamed with it
            raise sqlite3.OperationalError(f"{UNFINISHED} is in use by another program")
    _remove_all(folder, keep={UNFINISHED, *(file.name for file in files)})
    fsync(folder)
    os.replace(folder / UNFINISHED, folder / DATABASE)
    fsync(folder)
    with suppress(OSError):  # for people only
        (folder / META).write_text(plan.to_json(), encoding="utf-8")


def _remove_all(folder: Path, *, keep: Iterable[str] = ()) -> None:
    for path in check_only_ours(folder):
        if path.name not in {LOCK, *keep}:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _create_folder(folder: Path) -> Iterator[None]:
    """Creates the folder, unless it holds other files; leaves no empty one after an error."""
    if reason := explain_no_folder(folder):
        raise InputError(f"{folder}: {reason}; give another folder for the index")
    with wrap_io_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_only_ours(folder)
    try:
        yield
    except BaseException:
        with suppress(OSError, PolyencoderError):
            with locked(folder, seconds=0):  # so that no other process holds the file that is removed
                if [path.name for path in folder.iterdir()] == [LOCK]:
                    (folder / LOCK).unlink()
            folder.rmdir()  # only if it is empty
        raise
