"""`polyencoder encode-candidates`: encodes candidates to files of vectors for `polyencoder index --vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyencoder.cli.shared.output import ProgressBars, say, shows_bars
from polyencoder.data.readers import BadExamples, expand
from polyencoder.distributed import EncodeCandidates, encode_parts
from polyencoder.index import candidates_from
from polyencoder.index.folder.build import SHARD_SIZE
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Count

__all__ = ["encode_candidates"]


@settings()
class EncodeCandidatesSettings(Settings):
    """The candidates that are encoded, by which model, and where their vectors are written."""

    model: RankerSettings
    input: Annotated[tuple[str, ...], Parameter(consume_multiple=True, allow_leading_hyphen=False)]
    """The candidates: FILE or GLOB, comma-separated, as of polyencoder index --candidates."""
    output: Annotated[Path, Parameter(alias="-o")]
    """The folder for the Parquet files."""
    rows: Count = SHARD_SIZE
    """Candidates per file; a killed run loses at most the files that were being encoded."""
    skip_bad_candidates: bool = False
    """Skip and count candidates that cannot be used."""
    progress: ProgressBars = None


def encode_candidates(*, settings: EncodeCandidatesSettings) -> None:
    """Encode candidates into Parquet files for polyencoder index --vectors.

    A killed run continues behind the last whole file when the same command is started again.
    """
    bad, model = BadExamples(skip=settings.skip_bad_candidates), settings.model
    files = expand(settings.input)
    encode = EncodeCandidates(model.model, device=model.device, backend=model.backend, dtype=model.model_dtype)
    total = encode_parts(
        candidates_from(files, bad=bad),
        settings.output,
        encode,
        rows=settings.rows,
        progress=shows_bars(settings.progress),
    )
    if summary := bad.summary():
        say(f"polyencoder: {summary}", err=True)
    say(f"{settings.output}: {total:,} candidates")
