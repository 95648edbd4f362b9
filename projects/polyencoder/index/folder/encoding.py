"""Encodes texts as rows of an index folder: vectors and, if it stores them, token vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from polyencoder.encoding.encoder import Encoder
from polyencoder.encoding.tokens import candidate_ids
from polyencoder.errors import CheckpointError
from polyencoder.index.meta import IndexMeta
from polyencoder.index.token_rows import TokenRows
from polyencoder.index.vectors import MappedFile, quantize

_AT_ONCE = 1 << 12  # texts the vectors of whose tokens are in memory at once


def encoded_rows(
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
    ids, model = candidate_ids(encoder.text, texts, remember=False), encoder.model
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
    for first in range(0, len(ids), _AT_ONCE):
        read = encoder.read_candidates(ids[first : first + _AT_ONCE], progress=progress)
        rows = range(first, first + len(read))
        vectors[rows] = np.stack([each.vector for each in read])
        tokens.put(rows, [each.tokens for each in read])
    return MappedFile(*quantize(vectors, meta.dtype, texts=texts), tokens)
