"""Checks existing vectors of candidates, and compares a few with those of the stated model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from polyencoder.encoding.encode import encode_candidates
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints, separable

SAMPLE = 8  # candidates whose texts the model encodes for comparison
LEAST_COSINE = 0.98  # cosine of the model's vector and the given one: float16 and bfloat16 reach 0.999
TOLERANCE = 0.01  # relative tolerance of lengths, and of vectors of one text


def with_vectors(
    records: Iterator[Candidate], ranker: TextRanker | Fingerprints
) -> tuple[Iterator[Candidate], int | None]:
    """Returns the candidates, with float32 vectors [dim] if the first has one, and dim; None if texts are encoded.

    The vectors of the first few candidates are compared with those that the model computes; if the model's vectors are
    normalized, all others must be, too.

    Raises:
        InputError: only some have a vector, or none has one and there is no model; while reading, also a vector of
            another dimension, not finite, zero, or not the model's. It names the candidate's place.
    """
    first = next(records, None)
    if first is None:
        if isinstance(ranker, Fingerprints):
            raise InputError("no index was made, as there are no candidates: the input is empty")
        return iter(()), None
    records = chain([first], records)
    if first.vector is None:
        if isinstance(ranker, Fingerprints):
            raise InputError(f"{_place(first)}has no vector, and there is no model to encode its text")

        def plain() -> Iterator[Candidate]:
            for record in records:
                if record.vector is not None:
                    raise InputError(f"{_place(record)}has a vector; either all candidates bring theirs, or none does")
                yield record

        return plain(), None
    if isinstance(ranker, Fingerprints):
        dim = len(checked_vector(first).vector)  # type: ignore[arg-type]
        return (checked_vector(record, dim=dim) for record in records), dim
    return _of_model(records, ranker), separable(ranker).dim


def checked_vector(candidate: Candidate, *, dim: int | None = None, length: float | None = None) -> Candidate:
    """Returns the candidate with its vector as float32 [dim], whose norm must be about `length`, if given.

    Raises InputError for one that cannot be used.
    """
    if candidate.vector is None:
        raise InputError(f"{_place(candidate)}has no vector; either all candidates bring theirs, or none does")
    try:
        given = candidate.vector.float().cpu() if isinstance(candidate.vector, torch.Tensor) else candidate.vector
        with np.errstate(all="ignore"):  # to infinity, which is an error below
            vector: np.ndarray[Any, Any] = np.ascontiguousarray(given, dtype=np.float32)
            square = float(np.vdot(vector, vector))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{_place(candidate)}its vector is {candidate.vector!r:.60}; it must be numbers") from None
    if vector.ndim != 1 or not len(vector):
        raise InputError(f"{_place(candidate)}its vector has the shape {list(vector.shape)}; it must be [dim]")
    if dim is not None and len(vector) != dim:
        raise InputError(f"{_place(candidate)}its vector has {len(vector):,} numbers, not {dim:,}")
    if not np.isfinite(square):
        raise InputError(f"{_place(candidate)}its vector is not finite (inf or nan), or too large for float32")
    if square == 0:
        raise InputError(f"{_place(candidate)}its vector is zero")
    if length is not None and abs(square**0.5 - length) > TOLERANCE * length:
        raise InputError(
            f"{_place(candidate)}its vector has the length {square**0.5:.4g}; the model's have {length:.4g}"
        )
    return candidate._replace(vector=vector)


def same_vector(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two vectors are equal except for rounding, including that of index files."""
    return bool(np.linalg.norm(one - other) <= TOLERANCE * np.linalg.norm(one))


def _of_model(records: Iterator[Candidate], ranker: TextRanker) -> Iterator[Candidate]:
    dim = separable(ranker).dim
    some = [checked_vector(record, dim=dim) for record in islice(records, SAMPLE)]
    length = _model_length(ranker, [record for record in some if isinstance(record.text, str) and record.text.strip()])
    for record in chain(some, records):
        yield checked_vector(record, dim=dim, length=length)


def _model_length(ranker: TextRanker, some: list[Candidate]) -> float | None:
    """The length of the model's vectors; None if lengths differ. InputError for a vector that is not the model's."""
    if not some:
        return None
    own = encode_candidates(separable(ranker), ranker.text, [record.text for record in some], remember=False)
    made = own.float().cpu().numpy()
    lengths = np.linalg.norm(made, axis=1)
    for record, vector, length in zip(some, made, lengths, strict=True):
        assert record.vector is not None
        cosine = float(record.vector @ vector / (np.linalg.norm(record.vector) * length))
        if not cosine >= LEAST_COSINE:
            raise InputError(
                f"{_place(record)}its vector is not the model's vector of its text (their cosine is "
                f"{cosine:.3f}); give the model that made the vectors, or its fingerprint instead of a model"
            )
    return float(lengths[0]) if np.ptp(lengths) <= 1e-3 * lengths[0] else None


def _place(candidate: Candidate) -> str:
    return f"{candidate.where or f'the candidate {candidate.id!r:.60}'}: "
