"""Encodes texts as rows of an index folder: vectors and, if it stores them, token vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyencoder.errors import CheckpointError
from polyencoder.index.meta import IndexMeta
from polyencoder.index.token_rows import TokenRows
from polyencoder.index.vectors import MappedFile, quantize
from polyencoder.search.contexts import as_array
from polyencoder.text import TextEncoder

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel


def encoded_rows(
    folder: Path,
    model: RankerModel,
    text: TextEncoder,
    meta: IndexMeta,
    texts: Sequence[str],
    *,
    progress: Callable[[int], object] | None = None,
) -> MappedFile:
    """The rows of these texts, as this index stores them; see `encode_candidates` for `progress`.

    Raises:
        CheckpointError: the index holds token vectors that this model does not give.
        InputError: a number cannot be stored.
    """
    from polyencoder.encoding.encode import candidate_ids, encode_candidates, read_candidates  # here: it needs torch

    if meta.tokens is None:
        found = encode_candidates(model, text, texts, remember=False, progress=progress)
        return MappedFile(*quantize(as_array(found), meta.dtype, texts=texts))
    if meta.tokens.fingerprint != model.token_fingerprint:
        raise CheckpointError(
            f"{folder}: holds token vectors of another model than this {model.title}: to add texts, load the "
            "late-interaction encoder that made it"
        )
    ids = candidate_ids(text, texts, remember=False)
    vectors, tokens = (
        np.empty((len(texts), model.dim), dtype=np.float32),
        TokenRows.empty([max(1, len(one)) for one in ids], meta.tokens),
    )
    for rows, read in read_candidates(model, text, ids):
        vectors[rows] = np.stack([as_array(each.vector) for each in read])
        tokens.put(rows, [as_array(each.tokens) for each in read])
        if progress is not None:
            progress(len(rows))
    return MappedFile(*quantize(vectors, meta.dtype, texts=texts), tokens)
