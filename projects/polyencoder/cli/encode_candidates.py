"""`polyencoder encode-candidates`: encodes candidates to files of vectors for `polyencoder index --vectors`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from polyencoder.cli.shared.output import ProgressBars, say, shows_bars
from polyencoder.data.readers import BadExamples, expand
from polyencoder.errors import ConfigError
from polyencoder.index import candidates_from
from polyencoder.index.build_options import SHARD_SIZE
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Count, Needs, Without
from polyencoder.storage.files import check_writable_folder

if TYPE_CHECKING:
    from polyencoder.distributed.blocks import Engine


@settings()
class EncodeCandidatesSettings(Settings):
    """The candidates that are encoded, by which model, and where their vectors are written."""

    model: RankerSettings
    input: Annotated[tuple[str, ...], Parameter(consume_multiple=1, allow_leading_hyphen=False)]
    """The candidates: FILE or GLOB, comma-separated, as of polyencoder index --candidates."""
    output: Annotated[Path, Parameter(alias="-o")]
    """The folder for the Parquet files."""
    rows: Count = SHARD_SIZE
    """Candidates per file; a killed run loses at most the files that were being encoded."""
    engine: Literal["ray", "spark"] | None = None
    """Encode on a cluster, one file for each block of --rows: the input is Parquet files, and all machines reach them,
    the folder and the model under the same names. Without RAY_ADDRESS, or a master of Spark, on this machine."""
    workers: Annotated[Count, Needs("engine")] = 1
    """Workers of the engine, each with its own model; on a cluster, Spark has its own number."""
    skip_bad_candidates: Annotated[bool, Without("engine")] = False
    """Skip and count candidates that cannot be used."""
    progress: ProgressBars = None


def encode_candidates(*, settings: EncodeCandidatesSettings) -> None:
    """Encode candidates into Parquet files for polyencoder index --vectors.

    A killed run continues behind the last whole file when the same command is started again.
    """
    from polyencoder.distributed import EncodeCandidates, encode_blocks, encode_parts
    from polyencoder.distributed.on_ray import RayEngine
    from polyencoder.distributed.on_spark import SparkEngine

    bad, model = BadExamples(skip=settings.skip_bad_candidates), settings.model
    check_writable_folder(settings.output, argument="output")
    files = expand(settings.input)
    name = os.path.abspath(model.model) if settings.engine and os.path.exists(model.model) else model.model
    encode = EncodeCandidates(name, device=model.device, backend=model.backend, dtype=model.model_dtype)
    if settings.engine is not None:
        engine: Engine = SparkEngine(workers=settings.workers)
        if settings.engine == "ray":
            if (model.device or "").startswith("cuda:"):
                raise ConfigError(
                    f"device is {model.device}, but Ray gives each worker a GPU of its own: give cuda",
                    argument="device",
                )
            engine = RayEngine(workers=settings.workers, gpus=model.device == "cuda")
        total = encode_blocks(files, settings.output, encode, engine=engine, rows=settings.rows)
        say(f"{settings.output}: {total:,} candidates")
        return
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
