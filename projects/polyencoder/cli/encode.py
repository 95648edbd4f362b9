"""`polyencoder encode`: encodes texts to vectors, for other programs."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyencoder.checks import check_place
from polyencoder.cli.shared.loading import load_encoder
from polyencoder.cli.shared.output import say
from polyencoder.config import VectorKind
from polyencoder.data.contexts import read_questions
from polyencoder.data.readers import expand
from polyencoder.encoding.protocol import Dialogue
from polyencoder.errors import ConfigError, InputError
from polyencoder.index import candidates_from
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerOrBackbone
from polyencoder.settings.fields import Count
from polyencoder.storage.files import check_writable, reporting_write_errors, write_array


@settings()
class EncodeSettings(Settings):
    """The vectors that are written, and where."""

    out: Annotated[Path, Parameter(alias="-o")]
    """The .npy file to write: float32, one row per text."""
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
    progress: bool = True
    """Show a progress bar on standard error."""


def encode(texts: list[str], /, *, settings: EncodeSettings) -> None:
    """Write one vector per text, in order, to a file for numpy.load.

    Args:
        texts: FILE, GLOB or - for standard input: one text per line, or JSON lines, CSV, TSV or Parquet with context or
            text; candidates as polyencoder index reads them.
    """
    out = settings.out
    check_place("out", out)
    if out.suffix != ".npy":
        raise ConfigError(f"{out}: vectors are written as numpy's .npy; give the file this ending", argument="out")
    check_writable(out, argument="out", overwrite=settings.overwrite)
    files = expand(texts)
    read: list[Dialogue] = (
        [one.text for one in candidates_from(files)]
        if settings.kind == "candidate"
        else [one.turns for one in read_questions(files)]
    )
    if not read:
        raise InputError(f"{', '.join(texts)}: no text in it")
    vectors = load_encoder(settings.encoder).encode(
        read,
        kind=settings.kind,
        normalize=settings.normalize,
        batch_size=settings.batch_size,
        progress=settings.progress,
    )
    with reporting_write_errors(out):
        write_array(out, vectors, overwrite=settings.overwrite)
    say(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]:,} numbers")
