"""Encodes the missing shards of an index that is being built, here or in several processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.encoding.encoder import Encoder
from polyencoder.encoding.protocol import TextRanker
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.errors import CheckpointError, PolyencoderError
from polyencoder.index.folder.catalogue import Catalogue
from polyencoder.index.folder.database import connect
from polyencoder.index.folder.files import UNFINISHED
from polyencoder.index.meta import IndexMeta
from polyencoder.index.token_rows import TokenRows
from polyencoder.index.vectors import MappedFile, get_vectors_file, is_whole, quantize, write_vectors

Advance = Callable[[int], object]
"""Called with the number of texts encoded since the last call."""

_POLL_SECONDS = 0.2


def list_shards(folder: Path, plan: IndexMeta) -> dict[int, tuple[Path, int]]:
    """The file of each shard and its number of rows, by its first row."""
    size = plan.shard_size
    return {
        first: (get_vectors_file(folder, first, tag=plan.build), min(size, plan.rows - first))
        for first in range(0, plan.rows, size)
    }


def list_missing(folder: Path, plan: IndexMeta) -> list[int]:
    """The first rows of the shards without a complete file."""
    return [
        first
        for first, (path, rows) in list_shards(folder, plan).items()
        if not is_whole(path, rows=rows, dim=plan.dim, dtype=plan.dtype, tokens=plan.tokens)
    ]


def encode_here(folder: Path, encoder: Encoder, plan: IndexMeta, shards: Sequence[int], *, advance: Advance) -> None:
    """Encodes the shards that begin at these rows, one after the other."""
    with closing(connect(folder / UNFINISHED, "mode=ro&immutable=1")) as connection:  # unchanged during the second pass
        catalogue = Catalogue(connection, folder)
        for first in shards:
            texts = catalogue.list_texts(first, first + plan.shard_size)
            rows = encode_rows(folder, encoder, plan, texts, progress=advance)
            write_vectors(folder, first, *rows, tag=plan.build)


def encode_in_processes(
    folder: Path, ranker: TextRanker, plan: IndexMeta, shards: Sequence[int], *, workers: int, advance: Advance
) -> None:
    """Encodes shards in workers that share the threads, or GPUs. PolyencoderError if one is killed; files stay."""
    # Spawned, not forked: a fork of a process with library threads may deadlock.
    spawn = multiprocessing.get_context("spawn")
    done, numbers = spawn.Value("q", 0), spawn.Value("i", 0)
    settings = {
        "folder": folder,
        # bytes: multiprocessing passes tensors in shared memory, which is small in containers
        "encoder": pickle.dumps(ranker.encoder),
        "plan": plan,
        "threads": max(1, ranker.encoder.threads // workers),
    }
    with ProcessPoolExecutor(
        workers, mp_context=spawn, initializer=_start_worker, initargs=(settings, done, numbers)
    ) as pool:
        waiting = {pool.submit(_encode_shard, first) for first in shards}
        reported = 0
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=_POLL_SECONDS)
                advance(done.value - reported)
                reported = done.value
                for future in finished:
                    future.result()
        except BrokenProcessPool:
            raise PolyencoderError(
                f"{folder}: a worker was killed, perhaps for lack of memory: run the same again to "
                "resume, with fewer workers if it happens again",
                argument="workers",
            ) from None
        finally:  # after an error no further shard is begun
            pool.shutdown(cancel_futures=True)


_encode: Callable[[Sequence[int]], None]  # in a worker process: bound to its model by `_start_worker`


def _start_worker(settings: dict[str, Any], done: Any, numbers: Any) -> None:
    global _encode
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with numbers.get_lock():
        number, numbers.value = numbers.value, numbers.value + 1
    os.environ["RAYON_NUM_THREADS"] = str(settings["threads"])  # the tokenizer's
    encoder = pickle.loads(settings["encoder"])  # noqa: S301 - of the process that started this one
    encoder = encoder.copy_to_worker(number=number, threads=settings["threads"])

    def advance(n: int) -> None:
        with done.get_lock():
            done.value += n

    _encode = partial(encode_here, settings["folder"], encoder, settings["plan"], advance=advance)


def _encode_shard(first: int) -> None:
    _encode([first])


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed, which would otherwise wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


_BATCH_SIZE = 1 << 12  # texts whose token vectors are in memory at once


def encode_rows(
    folder: Path,
    encoder: Encoder,
    meta: IndexMeta,
    texts: Sequence[str],
    *,
    progress: Callable[[int], object] | None = None,
) -> MappedFile:
    """The rows of these texts, as this index stores them; `progress` is called with the size of each finished batch.

    Raises:
        CheckpointError: the index holds token vectors that this model does not give.
        InputError: a number cannot be stored.
    """
    ids, model = tokenize_candidates(encoder.text, texts, remember=False), encoder.model
    if meta.tokens is None:
        vectors = encoder.encode_candidates(ids, progress=progress)
        return MappedFile(*quantize(vectors, meta.dtype, texts=texts))
    if meta.tokens.fingerprint != model.token_fingerprint:
        raise CheckpointError(
            f"{folder}: holds token vectors of another model than this {model.title}: to add texts, load the "
            "late-interaction encoder that made it"
        )
    vectors = np.empty((len(texts), model.dim), dtype=np.float32)
    tokens = TokenRows.empty([max(1, len(row)) for row in ids], meta.tokens)
    for first in range(0, len(ids), _BATCH_SIZE):
        read = encoder.read_candidates(ids[first : first + _BATCH_SIZE], progress=progress)
        rows = range(first, first + len(read))
        vectors[rows] = np.stack([candidate.vector for candidate in read])
        tokens.put(rows, [candidate.tokens for candidate in read])
    return MappedFile(*quantize(vectors, meta.dtype, texts=texts), tokens)
