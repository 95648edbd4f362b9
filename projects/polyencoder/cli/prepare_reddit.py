"""`polyencoder prepare-reddit`: converts Reddit dumps to pairs of contexts and responses."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import IO, Annotated

from cyclopts import Parameter

from polyencoder.checks import check_count
from polyencoder.cli.shared.output import ProgressBars, check_json_lines, say
from polyencoder.data.readers import BadExamples, expand
from polyencoder.errors import ConfigError, InputError
from polyencoder.pretraining.reddit import REASONS, Filters, ThreadIndex
from polyencoder.progress import create_progress
from polyencoder.storage.files import atomic_write, check_writable, reporting_write_errors

_FILTERS = Filters()


def prepare_reddit(
    dump: list[str],
    /,
    *,
    out: Annotated[Path, Parameter(alias="-o")],
    history: int = 10,
    filters: Filters = _FILTERS,
    skip_bad_examples: bool = False,
    overwrite: bool = False,
    progress: ProgressBars = None,
) -> None:
    """Join comments to the comments they reply to: JSON lines of contexts and responses, for `polyencoder pretrain`.

    While it runs, an index beside --out takes about as much space as the kept comments.

    Args:
        dump: FILE or GLOB: comments (RC_*) and, for the beginnings of threads, submissions (RS_*); .zst.
        out: The JSON lines file; compressed if it ends in .gz.
        history: Maximum comments of a context.
        skip_bad_examples: Skip and count lines that cannot be used.
        overwrite: Replace --out.
    """
    check_count("history", history)
    files, bad = expand(dump), BadExamples(skip=skip_bad_examples)
    check_writable(out, argument="out", overwrite=overwrite, read=files)
    check_json_lines(out.with_suffix("") if out.suffix == ".gz" else out)
    if "-" in files:
        raise ConfigError("a dump cannot be standard input: give files")
    with reporting_write_errors(out), ThreadIndex(out.with_name(f".{out.name}.index.sqlite"), filters) as index:
        with create_progress(step="reading", unit="comments", show=progress) as reading:
            for count in index.read(files, bad=bad):
                reading.update(count - reading.n)
        written = 0
        with (
            atomic_write(out, overwrite=overwrite) as temporary,
            closing(_open(temporary, packed=out.suffix == ".gz")) as file,
        ):
            replies = index.iter_replies(history=history)
            for reply in create_progress(replies, step="writing", unit="pairs", show=progress):
                record = {"context": list(reply.context), "response": reply.response, "thread": reply.thread}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                written += 1
            if not written:
                raise InputError(f"{', '.join(dump)}: no comment replies to another one that is kept")
    for reason in REASONS:
        say(f"left out: {reason:20} {index.left_out[reason]:,}")
    if summary := bad.summarize():
        say(summary)
    say(f"kept: {index.num_texts:,} comments and submissions; {out}: {written:,} pairs")


def _open(path: Path, *, packed: bool) -> IO[str]:
    return gzip.open(path, "wt", encoding="utf-8", compresslevel=6) if packed else open(path, "w", encoding="utf-8")
