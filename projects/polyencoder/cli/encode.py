"""`polyencoder encode`: encodes texts to vectors, for other programs and for `polyencoder index --vectors`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from polyencoder.checks import check_place
from polyencoder.cli.shared.loading import load_encoder
from polyencoder.cli.shared.output import ProgressBars, say
from polyencoder.config import VectorKind
from polyencoder.data.contexts import read_questions
from polyencoder.data.readers import expand
from polyencoder.encoding.protocol import Dialogue
from polyencoder.errors import ConfigError, InputError
from polyencoder.index import Candidate, Fingerprints, candidates_from
from polyencoder.index.entries import check_candidate
from polyencoder.packages import require
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerOrBackbone
from polyencoder.storage.files import atomic_write, check_writable, reporting_write_errors, write_array
from polyencoder.validation import Count

if TYPE_CHECKING:
    from polyencoder.ranker import Ranker

ROWS_AT_ONCE = 65_536
"""Candidates that are encoded and written together, as a row group of the Parquet file."""


@settings()
class EncodeSettings(Settings):
    """The vectors that are written, and where."""

    out: Annotated[Path, Parameter(alias="-o")]
    """The file to write, float32: .npy, one row per text; or with --kind candidate .parquet, with the columns id, text,
    vector and metadata, which polyencoder index --vectors reads."""
    encoder: RankerOrBackbone = field(default_factory=RankerOrBackbone)
    kind: VectorKind = "pooled"
    """pooled: the encoder's pooled output (r_x of a convert model), for other tasks; context or candidate: the vectors
    whose dot products are scores."""
    normalize: bool = False
    """Normalize vectors to length 1."""
    batch_size: Count = 256
    """Maximum texts per batch."""
    overwrite: bool = False
    """Replace --out."""
    progress: ProgressBars = None


def encode(texts: list[str], /, *, settings: EncodeSettings) -> None:
    """Write one vector per text, in order, to a file for numpy.load or for polyencoder index --vectors.

    Args:
        texts: FILE, GLOB or - for standard input: one text per line, or JSON lines, CSV, TSV or Parquet with context or
            text; candidates as polyencoder index reads them.
    """
    out = settings.out
    check_place("out", out)
    if out.suffix not in (".npy", ".parquet"):
        raise ConfigError(f"{out}: give the file the ending .npy or .parquet", argument="out")
    if out.suffix == ".parquet" and settings.kind != "candidate":
        raise ConfigError(f"{out}: Parquet files have vectors of candidates: give --kind candidate", argument="kind")
    check_writable(out, argument="out", overwrite=settings.overwrite)
    files = expand(texts)
    candidates = candidates_from(files) if settings.kind == "candidate" else None
    if out.suffix == ".parquet":
        assert candidates is not None
        require("pyarrow", extra="data")
        read = [*islice(candidates, ROWS_AT_ONCE)]
    else:
        read = [*(read_questions(files) if candidates is None else candidates)]
    if not read:
        raise InputError(f"{', '.join(texts)}: no text in it")
    ranker = load_encoder(settings.encoder)
    options = {name: getattr(settings, name) for name in ("kind", "normalize", "batch_size", "progress")}
    with reporting_write_errors(out):
        if candidates is not None and out.suffix == ".parquet":
            with atomic_write(out, overwrite=settings.overwrite) as temporary:
                total, dim = _write_parquet(temporary, chain(read, candidates), ranker, **options)
        else:
            dialogues: list[Dialogue] = [item.text if isinstance(item, Candidate) else item.turns for item in read]
            vectors = ranker.encode(dialogues, **options)
            write_array(out, vectors, overwrite=settings.overwrite)
            total, dim = vectors.shape
    say(f"{out}: {total:,} vectors of {dim:,} numbers")


def _write_parquet(out: Path, candidates: Iterator[Candidate], ranker: Ranker, **options: Any) -> tuple[int, int]:
    """Writes candidates and their vectors, and the model's fingerprints into the schema; returns the shape."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    from polyencoder.index.precomputed import FINGERPRINTS

    total, dim, text = 0, ranker.model.dim, pyarrow.string()
    columns = {"id": text, "text": text, "vector": pyarrow.list_(pyarrow.float32(), dim), "metadata": text}
    stated = {} if options["normalize"] else {FINGERPRINTS: json.dumps(Fingerprints.of(ranker))}
    with ParquetWriter(out, pyarrow.schema([*columns.items()], metadata=stated)) as file:
        while block := [_check(candidate) for candidate in islice(candidates, ROWS_AT_ONCE)]:
            texts, ids, metadata = zip(*block, strict=True)
            vectors = ranker.encode(texts, **options)
            column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), dim)
            arrays = [pyarrow.array(ids, text), pyarrow.array(texts, text), column, pyarrow.array(metadata, text)]
            file.write_table(pyarrow.table(arrays, schema=file.schema))
            total += len(block)
    return total, dim


def _check(candidate: Candidate) -> tuple[str, str, str | None]:
    try:
        return check_candidate(candidate)
    except ValueError as error:
        raise InputError(f"{candidate.where}: not a candidate that an index can hold: {error}") from None
