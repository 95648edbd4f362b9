"""Encoding at scale: candidates, however many, into an index folder.

Two passes. The first streams the candidates into the catalogue, where equal texts meet. The second encodes the texts
in shards of some ten thousand rows, each a file. What is in memory is one shard, whatever the number of candidates.

A build that was killed goes on when it is started again: `unfinished.json` says that the first pass is over and of
what; a shard's file is there or not, never half; renaming `unfinished.json` to `meta.json` ends the build.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from polyencoder.errors import ConfigError, InputError, first_line
from polyencoder.files import replacing
from polyencoder.index.base import Candidate, Record, checked_records
from polyencoder.index.catalogue import CATALOGUE, Catalogue
from polyencoder.index.meta import META, UNFINISHED, Fingerprints, IndexMeta, separable
from polyencoder.index.shards import Share, encode_here, encode_in_processes, missing_shards
from polyencoder.index.vectors import VectorDtype, Vectors, check_dtype, vector_files
from polyencoder.protocol import TextRanker

SHARD_SIZE = 1 << 16
_POLL_SECONDS = 0.2
_MOST = 1 << 31  # rows, or processes


def build_index(
    folder: str | os.PathLike[str],
    candidates: Iterable[Record],
    ranker: TextRanker,
    *,
    dtype: VectorDtype = "float32",
    shard_size: int = SHARD_SIZE,
    workers: int = 1,
    share: Share | None = None,
    model_name: str = "",
    progress: bool = False,
) -> None:
    """Encode candidates into an index folder, or finish one that was begun from the same candidates and model.

    The bytes are the same however often the build was killed and started again, and with any number of workers that
    have as many threads each. An index that is finished already is left as it is.

    Args:
        folder: where; made if it is not there.
        candidates: read once, never held in memory.
        ranker: a bi- or poly-encoder.
        dtype: of the vectors on disk. bfloat16 halves, int8 quarters the size of float32.
        shard_size: rows in a file: what is encoded at once, and lost at most when the build is killed.
        workers: processes on this machine, each with the model in memory. They are started afresh and import the main
            module, so a script that calls this wants `if __name__ == "__main__":`.
        share: under torchrun `Share.from_environment()`: every process calls this with the same arguments, encodes its
            share of the shards, and returns when the index is finished. None: this process does all.
        model_name: where the model was loaded from, for messages about the index.
        progress: show bars with rate and time left on stderr.

    Raises:
        InputError: if there are no candidates, one is not usable, an id is there twice for different candidates, or
            the folder holds another index or cannot be written.
    """
    folder = Path(folder)
    check_dtype(dtype)
    for name, value in (("workers", workers), ("shard_size", shard_size)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise ConfigError(
                f"{name} is {value!r:.60}; it must be at least 1, a whole number up to {_MOST:,}", argument=name
            )
    share = share or Share()
    if share.processes > 1 and workers > 1:
        raise ConfigError(
            f"workers is {workers} under torchrun, which has started {share.processes} processes already",
            argument="workers",
        )
    model = separable(ranker)
    plan = IndexMeta(
        architecture=model.config.architecture,
        dim=model.dim,
        dtype=dtype,
        fingerprints=Fingerprints.of(ranker),
        model_name=model_name,
        shard_size=shard_size,
        rows=0,
        candidates=None,
    )
    with _explained(folder):
        first = share.rank == 0
        plan = (
            _catalogued(folder, checked_records(candidates), plan, progress=progress)
            if first
            else _awaited(folder, plan)
        )
        if (folder / META).exists():
            return
        shards = share.of(missing_shards(folder, plan), shard_size=shard_size)
        done = plan.rows - sum(min(shard_size, plan.rows - shard) for shard in shards)
        with _bar("encoding", plan.rows, done=done, unit=" texts", show=progress and first) as bar:
            if workers == 1 or len(shards) < 2:
                encode_here(folder, model, ranker.text, plan, shards, advance=bar.update)
            else:
                encode_in_processes(folder, ranker, plan, shards, workers=min(workers, len(shards)), advance=bar.update)
        if first:
            _finish(folder, plan)
        while not (folder / META).exists():
            time.sleep(_POLL_SECONDS)


def candidates_digest(candidates: Iterable[Candidate]) -> str:
    """What `IndexMeta.candidates` is for an index that was built of these and never changed."""
    digest = hashlib.blake2b(digest_size=16)
    for candidate in candidates:
        digest.update(_digested(candidate))
    return digest.hexdigest()


def _digested(candidate: Candidate) -> bytes:
    return repr(candidate[:3]).encode()


def _catalogued(folder: Path, candidates: Iterable[Candidate], plan: IndexMeta, *, progress: bool) -> IndexMeta:
    """The first pass, or a look at whether the one that was made before had the same candidates."""
    digest = hashlib.blake2b(digest_size=16)

    def read() -> Iterator[Candidate]:
        with _bar("reading", None, unit=" candidates", show=progress) as bar:
            for candidate in candidates:
                digest.update(_digested(candidate))
                bar.update()
                yield candidate

    if (begun := _begun(folder)) is not None:
        _check_same(begun, plan, folder=folder)
        for _ in read():
            pass
        if begun.candidates != digest.hexdigest():
            raise InputError(f"{folder}: an index of other candidates is there; give another folder, or remove it")
        return begun
    if folder.is_dir():
        if vector_files(folder):
            raise InputError(f"{folder}: has files of vectors, but no {META}; give another folder, or remove it")
        _remove_parts(folder)
    with replacing(folder / CATALOGUE) as temporary, closing(Catalogue.create(temporary)) as catalogue:
        catalogue.fill(read())
        if catalogue.rows == 0:
            raise InputError(f"{folder}: not made, as there is no candidate to put into it: the input is empty")
        plan = replace(plan, rows=catalogue.rows, candidates=digest.hexdigest())
    plan.write(folder, UNFINISHED)
    return plan


def _awaited(folder: Path, plan: IndexMeta) -> IndexMeta:
    """What the process of rank 0 has catalogued."""
    while (begun := _begun(folder)) is None:
        time.sleep(_POLL_SECONDS)
    _check_same(begun, plan, folder=folder)
    return begun


def _begun(folder: Path) -> IndexMeta | None:
    for name in (META, UNFINISHED):
        if (folder / name).is_file():
            return IndexMeta.read(folder, name)
    return None


def _check_same(begun: IndexMeta, plan: IndexMeta, *, folder: Path) -> None:
    begun.check_model(plan.fingerprints, folder=folder)
    for name in ("dtype", "shard_size"):
        if (there := getattr(begun, name)) != (here := getattr(plan, name)):
            raise InputError(
                f"{folder}: an index with {name} {there} is there, {here} is asked for now; give another folder, or "
                "remove it"
            )
    if begun.candidates is None:
        raise InputError(f"{folder}: an index is there that was changed since it was built; add to it, or remove it")


def _finish(folder: Path, plan: IndexMeta) -> None:
    while missing_shards(folder, plan):  # other processes are at them
        time.sleep(_POLL_SECONDS)
    Vectors.open(folder, dim=plan.dim, dtype=plan.dtype, rows=plan.rows)  # complains of a file that is damaged
    _remove_parts(folder)
    os.replace(folder / UNFINISHED, folder / META)


def _remove_parts(folder: Path) -> None:
    """What processes that were killed have left."""
    for path in folder.glob(".*.part"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _bar(what: str, total: int | None, *, unit: str, show: bool, done: int = 0) -> tqdm:
    return tqdm(desc=what, total=total, initial=done, unit=unit, unit_scale=True, disable=not show, dynamic_ncols=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Make errors of the disk ours, a full one above all, and leave no empty folder."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            folder.rmdir()  # which it does only if nothing is in it
        if not isinstance(error, (OSError, sqlite3.OperationalError)):
            raise
        raise InputError(
            f"{folder}: cannot be written ({first_line(error)}); mend that and run the same command again: it goes on "
            "from there"
        ) from error
