"""Reads precomputed vectors of candidates from files, checks them, and compares a few with the model's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from polyencoder.data.readers import OnBad, detect_format, expand, iter_records, raise_it
from polyencoder.encoding.protocol import TextRanker
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.errors import InputError, get_first_line
from polyencoder.index.candidates import clean_row, to_candidate
from polyencoder.index.entries import Candidate
from polyencoder.index.meta import Fingerprints, get_separable_model
from polyencoder.packages import require
from polyencoder.search.contexts import to_array

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

FINGERPRINTS = b"polyencoder_fingerprints"
"""The key in the metadata of a Parquet file's schema: the JSON of the encoder's `Fingerprints`."""
SAMPLE = 8  # candidates whose texts the model encodes for comparison
MIN_COSINE = 0.98  # of the model's vector and the precomputed one: float16 and bfloat16 reach 0.999
TOLERANCE = 0.01  # relative tolerance of lengths, and of vectors of one text


def vectors_from(paths: Paths, *, bad: OnBad = raise_it) -> Iterator[Candidate]:
    """Yields the candidates of Parquet or JSON lines files with their vectors, float32 [dim], in order.

    Records have the fields of `candidates_from`, and `vector`, a list of numbers.

    Raises:
        InputError: a file of another format, at once; while reading, a file that cannot be read; and, unless `bad`
            handles it, a candidate as in `candidates_from`, or a vector that is missing, of another dimension than the
            first one, not finite, or zero. It names the file and the row, the first being 1.
    """
    files = expand(paths)
    for path in files:
        if detect_format(path) not in ("jsonl", "parquet"):
            raise InputError(
                f"{path}: vectors are read from a column `vector` of .parquet or .jsonl files: write them beside the "
                "texts into one"
            )

    def read() -> Iterator[Candidate]:
        dim = None
        for where, record in chain.from_iterable(iter_records(path, bad=bad) for path in files):
            vector = record.pop("vector", None)
            try:
                candidate = check_vector(to_candidate(clean_row(record), where=where)._replace(vector=vector), dim=dim)
            except InputError as error:
                bad(error)
                continue
            dim = dim or len(candidate.vector)  # type: ignore[arg-type]
            yield candidate

    return read()


def read_fingerprints(paths: Paths) -> Fingerprints | None:
    """The fingerprints that Parquet files name for their vectors, if any. InputError if they differ."""
    first: tuple[str, Fingerprints] | None = None
    for path in expand(paths):
        if detect_format(path) != "parquet":
            continue
        try:
            schema = require("pyarrow.parquet", extra="data").read_schema(path)
            if (written := (schema.metadata or {}).get(FINGERPRINTS)) is None:
                continue
            stated = Fingerprints(*map(str, json.loads(written)))
        except (require("pyarrow", extra="data").ArrowException, OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not Parquet, or damaged ({get_first_line(error)})") from None
        if first is not None and not stated.fits(first[1]):
            raise InputError(
                f"{path}: its vectors come from another encoder ({stated.model}) than those of {first[0]} "
                f"({first[1].model}); an index needs the vectors of one encoder"
            )
        first = first or (path, stated)
    return None if first is None else first[1]


def check_vectors(
    candidates: Iterator[Candidate], ranker: TextRanker | Fingerprints
) -> tuple[Iterator[Candidate], int | None]:
    """Returns the candidates, with float32 vectors [dim] if the first has one, and dim; None if texts are encoded.

    The model encodes the first few candidates for comparison; if its vectors are normalized, all must be.

    Raises:
        InputError: only some have a vector, or none has one and there is no model; while reading, also a vector of
            another dimension, not finite, zero, or not the model's. It names the candidate's file and line.
    """
    first = next(candidates, None)
    candidates = chain([] if first is None else [first], candidates)
    if first is not None and first.vector is not None:
        if isinstance(ranker, Fingerprints):
            dim = len(check_vector(first).vector)  # type: ignore[arg-type]
            return (check_vector(candidate, dim=dim) for candidate in candidates), dim
        return _check_vectors(candidates, ranker), get_separable_model(ranker).dim
    if isinstance(ranker, Fingerprints):
        if first is None:
            raise InputError("no index was made, as there are no candidates: the input is empty")
        raise InputError(f"{_name_candidate(first)}has no vector, and there is no model to encode its text")
    return map(_check_without_vector, candidates), None


def check_vector(candidate: Candidate, *, dim: int | None = None, length: float | None = None) -> Candidate:
    """The candidate with its vector as float32 [dim], of about the norm `length`, if any. InputError for a bad one."""
    value: Any = candidate.vector
    if value is None:
        raise InputError(f"{_name_candidate(candidate)}has no vector; either all candidates bring theirs, or none does")
    try:
        with np.errstate(all="ignore"):  # to infinity, which is an error below
            array = to_array(value) if hasattr(value, "detach") else value
            vector: np.ndarray[Any, Any] = np.ascontiguousarray(array, dtype=np.float32)
            norm = float(np.linalg.norm(vector.astype(np.float64)))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{_name_candidate(candidate)}its vector is {value!r:.60}; it must be numbers") from None
    problem = ""
    if np.ndim(array) != 1 or not len(vector):
        problem = f"has the shape {list(np.shape(array))}; it must be [dim]"
    elif dim is not None and len(vector) != dim:
        problem = f"has {len(vector):,} numbers, not {dim:,}"
    elif not np.isfinite(norm):
        problem = "is not finite (inf or nan), or too large for float32"
    elif norm == 0:
        problem = "is zero"
    elif length is not None and abs(norm - length) > TOLERANCE * length:
        problem = f"has the length {norm:.4g}; the model's have {length:.4g}"
    if problem:
        raise InputError(f"{_name_candidate(candidate)}its vector {problem}")
    return candidate._replace(vector=vector)


def is_same_vector(left: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two vectors are equal except for rounding, such as by an index's files."""
    left, other = left.astype(np.float64), other.astype(np.float64)  # whose squares neither overflow nor vanish
    return bool(np.linalg.norm(left - other) <= TOLERANCE * np.linalg.norm(left))


def _check_without_vector(candidate: Candidate) -> Candidate:
    if candidate.vector is not None:
        raise InputError(f"{_name_candidate(candidate)}has a vector; either all candidates bring theirs, or none does")
    return candidate


def _check_vectors(candidates: Iterator[Candidate], ranker: TextRanker) -> Iterator[Candidate]:
    dim, length = get_separable_model(ranker).dim, None
    first = [check_vector(candidate, dim=dim) for candidate in islice(candidates, SAMPLE)]
    if sample := [candidate for candidate in first if isinstance(candidate.text, str) and candidate.text.strip()]:
        length = _measure_length(ranker, sample)
    for candidate in chain(first, candidates):
        yield check_vector(candidate, dim=dim, length=length)


def _measure_length(ranker: TextRanker, sample: list[Candidate]) -> float | None:
    """The length of the model's vectors; None if lengths differ. InputError for a vector that is not the model's."""
    texts = [candidate.text for candidate in sample]
    encoded = ranker.encoder.encode_candidates(tokenize_candidates(ranker.text, texts, remember=False))
    encoded = encoded.astype(np.float64)
    lengths = np.linalg.norm(encoded, axis=1)
    for candidate, vector, length in zip(sample, encoded, lengths, strict=True):
        assert candidate.vector is not None
        cosine = float(candidate.vector @ vector / (np.linalg.norm(candidate.vector.astype(np.float64)) * length))
        if not cosine >= MIN_COSINE:
            raise InputError(
                f"{_name_candidate(candidate)}its vector is not the model's vector of its text (their cosine is "
                f"{cosine:.3f}); give the model that made the vectors, or its fingerprint instead of a model"
            )
    return float(lengths[0]) if np.ptp(lengths) <= 1e-3 * lengths[0] else None


def _name_candidate(candidate: Candidate) -> str:
    return f"{candidate.where or f'the candidate {candidate.id!r:.60}'}: "
