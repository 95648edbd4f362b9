"""Encodes texts as rows of an index folder: vectors and, if it stores them, token vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from polyencoder.encoding.encode import candidate_ids, encode_candidates, read_candidates
from polyencoder.errors import CheckpointError
from polyencoder.index.meta import IndexMeta
from polyencoder.index.token_rows import TokenRows
from polyencoder.index.vectors import MappedFile, quantize
from polyencoder.modeling.base import RankerModel
from polyencoder.text import TextEncoder


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
    if meta.tokens is None:
        vectors = encode_candidates(model, text, texts, remember=False, progress=progress)
        return MappedFile(*quantize(vectors, meta.dtype, texts=texts))
    if not meta.tokens.are_of(model):
        raise CheckpointError(
            f"{folder}: holds token vectors of another model than this {model.title}: to add texts, load the "
            "late-interaction encoder that made it"
        )
    ids = candidate_ids(text, texts, remember=False)
    vectors, tokens = (
        torch.empty(len(texts), model.dim),
        TokenRows.empty([max(1, len(one)) for one in ids], meta.tokens),
    )
    for rows, read in read_candidates(model, text, ids):
        vectors[rows] = torch.stack([one.vector for one in read]).float().cpu()
        tokens.put(rows, read)
        if progress is not None:
            progress(len(rows))
    return MappedFile(*quantize(vectors, meta.dtype, texts=texts), tokens)
