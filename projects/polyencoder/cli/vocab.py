"""`polyencoder vocab`: a vocabulary learnt from one's own texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from polyencoder.checkpoint import TOKENIZER
from polyencoder.checks import unencodable
from polyencoder.data.readers import expand
from polyencoder.data.texts import read_texts, sampled
from polyencoder.errors import ConfigError, InputError
from polyencoder.files import check_writable, explaining, write_text
from polyencoder.text.subwords import SubwordSettings, count_words, learn_subwords, learn_subwords_of_size

__all__ = ["vocab"]

_DEFAULTS = SubwordSettings()


def vocab(
    corpus: Annotated[
        list[str],
        typer.Argument(
            help="FILE or GLOB: a text a line, or JSON lines, CSV, TSV or Parquet with text, turns, context or "
            "response; also .gz, .bz2 and .xz. Read twice.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that gets the vocabulary, tokenizer.json.")],
    type: Annotated[str, typer.Option("--type", "-t", help="convert: ConveRT's subwords.")] = "convert",
    size: Annotated[
        int | None, typer.Option(help="Search the minimum count whose vocabulary is nearest to so many, such as 31476.")
    ] = None,
    min_count: Annotated[int, typer.Option(help="How often a subword must be there.")] = _DEFAULTS.min_count,
    iterations: Annotated[int, typer.Option(help="Passes over the words.")] = _DEFAULTS.iterations,
    max_length: Annotated[int, typer.Option(help="The most characters of a subword.")] = _DEFAULTS.max_length,
    max_digits: Annotated[int, typer.Option(help="The most digits in a row in one.")] = _DEFAULTS.max_digits,
    buckets: Annotated[int, typer.Option(help="Ids that unknown characters share.")] = _DEFAULTS.buckets,
    sample: Annotated[int, typer.Option(help="The most sentences that it is learnt from.", min=1)] = 10_000_000,
    column: Annotated[
        list[str] | None, typer.Option(help="A column with texts; several times for several columns.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sample: equal seeds give equal vocabularies.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a tokenizer.json in --out.")] = False,
    progress: Annotated[bool, typer.Option(help="Show bars on standard error.")] = True,
) -> None:
    """Learn a vocabulary of subwords from texts, for `polyencoder train --architecture convert`."""
    if type != "convert":
        raise ConfigError(f"--type is {type!r}; it must be convert")
    settings = SubwordSettings(iterations, min_count, max_length, max_digits, buckets)
    path = out / TOKENIZER
    check_writable(path, argument="out", overwrite=overwrite)
    if "-" in corpus:
        raise ConfigError("the corpus is read twice, so it cannot be standard input: give files")
    files, columns = expand(corpus), tuple(column or ())

    def bar(what: str) -> tqdm[str]:
        texts = read_texts(files, columns=columns)
        return tqdm(texts, desc=what, unit=" texts", unit_scale=True, disable=not progress, dynamic_ncols=True)

    there = sum(1 for _ in bar("counting"))
    if not there:
        raise InputError(f"{', '.join(corpus)}: no text in it")
    words = count_words(sampled(bar("words"), count=sample, of=there, seed=seed))
    if problem := next(filter(None, map(unencodable, words)), None):
        raise InputError(f"{', '.join(corpus)}: {problem}")
    if size is None:
        tokenizer, found = learn_subwords(words, settings), min_count
    else:
        tokenizer, found = learn_subwords_of_size(words, size, settings, said=_say if progress else None)
    with explaining(path):
        write_text(path, tokenizer.to_str(pretty=True))
    typer.echo(
        f"{path}: {len(tokenizer.subwords):,} subwords that are there at least {found:,} times in "
        f"{min(sample, there):,} of {there:,} sentences, and {buckets:,} ids for unknown characters"
    )


def _say(count: int, size: int) -> None:
    typer.echo(f"at least {count:,} times: {size:,} subwords", err=True)
