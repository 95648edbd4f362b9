"""`polyencoder mine`: hard negatives for a file of pairs, written as candidates to train on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from tqdm import tqdm

from polyencoder.cli.contexts import in_batches
from polyencoder.cli.options import (
    BackendName,
    ContextColumn,
    Device,
    Model,
    ModelDtype,
    Progress,
    ResponseColumn,
    load,
    shows_bars,
)
from polyencoder.data.example import Example
from polyencoder.data.pairs import Columns, pairs_and_records
from polyencoder.data.readers import expand
from polyencoder.errors import InputError
from polyencoder.index.open import open_index
from polyencoder.storage.files import check_writable, explaining, fingerprint, replacing
from polyencoder.training.hard_negatives import HardNegatives, Miner, parse_ranks

__all__ = ["mine"]


def mine(
    model: Model,
    pairs: Annotated[
        str,
        typer.Option(
            "--pairs",
            "-p",
            help="FILE or GLOB, comma-separated: JSON lines, CSV, TSV or Parquet with `context`, a text or a "
            "list of turns, and `response`. Read twice.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="A .jsonl file, for -t selection:jsonl --candidates inline.")],
    context: ContextColumn = "context",
    response: ResponseColumn = "response",
    candidates: Annotated[
        str, typer.Option(help="Name of the column for the response and its negatives.")
    ] = "candidates",
    negatives: Annotated[int, typer.Option("--negatives", "-n", help="Negatives per pair.")] = 4,
    ranks: Annotated[
        str,
        typer.Option(help="Ranks among the wrong responses, best first, to draw from, such as 10-100."),
    ] = "1-100",
    margin: Annotated[
        float | None, typer.Option(help="Leave out negatives that score above the response's score minus this.")
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", "-i", help="Mine in this index (default: the responses of the pairs).")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Contexts per batch.", min=1)] = 64,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists.")] = False,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
    progress: Progress = None,
) -> None:
    """Add hard negatives to pairs: wrong responses that the model ranks high.

    A response that any of the pairs has for the same context is no negative of it.
    """
    settings = HardNegatives(negatives, *parse_ranks(ranks), margin)
    check_writable(out, argument="out", overwrite=overwrite)
    files, columns = expand(pairs), Columns(context, response)
    right = _responses(files, columns)
    bars = shows_bars(progress)
    ranker = load(model, device=device, backend=backend, dtype=model_dtype)
    responses = dict.fromkeys(text for texts in right.values() for text in texts)
    miner = Miner(
        ranker, open_index(index, ranker) if index else ranker.index(list(responses), progress=bars), settings
    )
    counts = {"pairs": 0, "negatives": 0}
    with (
        explaining(out),
        replacing(out) as temporary,
        open(temporary, "w", encoding="utf-8") as file,
        tqdm(desc="mining", unit=" pairs", unit_scale=True, disable=not bars, dynamic_ncols=True) as bar,
    ):
        for batch in in_batches(_pairs(files, columns), batch_size):
            mined = miner(
                ranker.encode_contexts([pair.turns for pair, _ in batch]),
                [pair.label for pair, _ in batch],
                right=[right[_key(pair)] for pair, _ in batch],
            )
            for (pair, record), texts in zip(batch, mined, strict=True):
                file.write(json.dumps({**record, candidates: [pair.label, *texts]}, ensure_ascii=False) + "\n")
                counts["negatives"] += len(texts)
            counts["pairs"] += len(batch)
            bar.update(len(batch))
    typer.echo(f"{out}: {counts['pairs']:,} pairs, {counts['negatives'] / counts['pairs']:.2f} hard negatives each")


def _responses(files: list[str], columns: Columns) -> dict[str, list[str]]:
    """All responses of each context, under its key."""
    right: dict[str, list[str]] = {}
    for pair, _ in _pairs(files, columns):
        right.setdefault(_key(pair), []).append(pair.label)
    if not right:
        raise InputError(f"{', '.join(files)}: no pair in it")
    return right


def _pairs(files: list[str], columns: Columns) -> Iterator[tuple[Example, dict[str, Any]]]:
    return (one for file in files for one in pairs_and_records(file, columns=columns, add_response=True))


def _key(pair: Example) -> str:
    return fingerprint([pair.text])
