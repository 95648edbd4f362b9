"""`polyencoder prepare-reddit`: pairs of contexts and responses from dumps of Reddit."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer
from tqdm import tqdm

from polyencoder.cli.options import Progress, shows_bars
from polyencoder.data.readers import BadExamples, expand
from polyencoder.errors import ConfigError, InputError
from polyencoder.pretraining.reddit import REASONS, Filters, ThreadIndex
from polyencoder.storage.files import check_writable, explaining, replacing

__all__ = ["prepare_reddit"]

_FILTERS = Filters()


def prepare_reddit(
    dump: Annotated[
        list[str],
        typer.Argument(
            help="FILE or GLOB: comments (RC_*) and, for the beginnings of threads, submissions (RS_*); .zst."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The JSON lines file; compressed if it ends in .gz.")],
    history: Annotated[int, typer.Option(help="Maximum comments of a context.", min=1)] = 10,
    min_length: Annotated[int, typer.Option(help="Minimum characters of a comment.")] = _FILTERS.min_length,
    max_length: Annotated[int, typer.Option(help="Maximum characters of a comment.")] = _FILTERS.max_length,
    keep_bots: Annotated[bool, typer.Option("--keep-bots", help="Keep authors whose names end in `bot`.")] = False,
    keep_links: Annotated[bool, typer.Option("--keep-links", help="Keep comments with links.")] = False,
    keep_quotes: Annotated[bool, typer.Option("--keep-quotes", help="Keep comments that quote.")] = False,
    keep_code: Annotated[bool, typer.Option("--keep-code", help="Keep comments with code.")] = False,
    skip_bad_examples: Annotated[
        bool, typer.Option("--skip-bad-examples", help="Skip and count lines that cannot be used.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    progress: Progress = None,
) -> None:
    """Join comments to the comments they reply to: JSON lines of contexts and responses, for `polyencoder pretrain`.

    Beside --out stands an index while it runs, about as large as what is kept of the dumps.
    """
    check_writable(out, argument="out", overwrite=overwrite)
    filters = Filters(min_length, max_length, keep_bots, keep_links, keep_quotes, keep_code)
    files, bad = expand(dump), BadExamples(skip=skip_bad_examples)
    if "-" in files:
        raise ConfigError("a dump cannot be standard input: give files")
    show = {"disable": not shows_bars(progress), "unit_scale": True, "dynamic_ncols": True}
    with explaining(out), ThreadIndex(out.with_name(f".{out.name}.index.sqlite"), filters) as index:
        with tqdm(desc="reading", unit=" comments", **cast(Any, show)) as bar:
            for count in index.read(files, bad=bad):
                bar.update(count - bar.n)
        written = 0
        with replacing(out) as temporary, closing(_opened(temporary, packed=out.suffix == ".gz")) as file:
            replies = index.replies(history=history)
            for reply in tqdm(replies, desc="writing", unit=" pairs", **cast(Any, show)):
                record = {"context": list(reply.context), "response": reply.response, "thread": reply.thread}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                written += 1
            if not written:
                raise InputError(f"{', '.join(dump)}: no comment replies to another one that is kept")
    for reason in REASONS:
        typer.echo(f"left out: {reason:20} {index.left_out[reason]:,}")
    if summary := bad.summary():
        typer.echo(summary)
    typer.echo(f"kept: {index.kept:,} comments and submissions; {out}: {written:,} pairs")


def _opened(path: Path, *, packed: bool) -> IO[str]:
    return gzip.open(path, "wt", encoding="utf-8", compresslevel=6) if packed else open(path, "w", encoding="utf-8")
