"""`polyencoder encode`: vectors of texts, for whatever else learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from polyencoder.checks import check_place
from polyencoder.cli.contexts import read_questions
from polyencoder.cli.options import BackboneName, BackendName, Device, ModelDtype, ModelOrNone, load_encoder
from polyencoder.data.readers import expand
from polyencoder.errors import ConfigError, InputError
from polyencoder.ranker.encoding import VectorKind
from polyencoder.storage.files import check_writable, explaining, replacing

__all__ = ["encode"]


def encode(
    texts: Annotated[
        list[str],
        typer.Argument(
            help="FILE, GLOB or - for standard input: one text per line, or JSON lines, CSV, TSV or Parquet with "
            "context or text.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npy file to write: float32, one row per text.")],
    model: ModelOrNone = None,
    backbone: BackboneName = None,
    kind: Annotated[
        str,
        typer.Option(
            help="pooled: the encoder's pooled output (r_x of a convert model), for other tasks; context or candidate: "
            "the vectors whose dot products are scores."
        ),
    ] = "pooled",
    normalize: Annotated[bool, typer.Option("--normalize", help="Normalize vectors to length 1.")] = False,
    batch_size: Annotated[int, typer.Option(help="Maximum texts per batch.")] = 256,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    progress: Annotated[bool, typer.Option(help="Show a progress bar on standard error.")] = True,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Write one vector per text, in order, to a file for numpy.load."""
    check_place("out", out)
    if out.suffix != ".npy":
        raise ConfigError(f"{out}: vectors are written as numpy's .npy; give the file this ending", argument="out")
    check_writable(out, argument="out", overwrite=overwrite)
    questions = list(read_questions(expand(texts)))
    if not questions:
        raise InputError(f"{', '.join(texts)}: no text in it")
    ranker = load_encoder(model, backbone, device=device, backend=backend, dtype=model_dtype)
    vectors = ranker.encode(
        ["\n".join(one.turns) for one in questions] if kind == "candidate" else [one.turns for one in questions],
        kind=cast("VectorKind", kind),
        normalize=normalize,
        batch_size=batch_size,
        progress=progress,
    )
    with explaining(out), replacing(out) as temporary, temporary.open("wb") as file:
        np.save(file, vectors)
    typer.echo(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]:,} numbers")
