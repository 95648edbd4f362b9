"""`polyencoder vocab`: a vocabulary learnt from one's own texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from polyencoder.checks import unencodable
from polyencoder.cli.options import Progress, shows_bars
from polyencoder.data.readers import expand
from polyencoder.data.texts import read_texts, sampled
from polyencoder.errors import ConfigError, InputError
from polyencoder.importing.folder import save_tokenizer
from polyencoder.pretraining.documents import read_documents
from polyencoder.storage.checkpoint import TOKENIZER
from polyencoder.storage.files import check_writable, explaining, write_text
from polyencoder.text.learning import ROLES, SIZE, PieceSettings, count_characters, learn_pieces
from polyencoder.text.subwords import SubwordSettings, count_words, learn_subwords, learn_subwords_of_size

__all__ = ["vocab"]

_DEFAULTS = SubwordSettings()
TYPES = ("convert", "bpe", "wordpiece")


def vocab(
    corpus: Annotated[
        list[str],
        typer.Argument(
            help="FILE or GLOB: one text per line, or JSON lines, CSV, TSV or Parquet with text, turns, context or "
            "response; plain, .gz, .bz2, .xz or .zst. Read twice.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write tokenizer.json to.")],
    type: Annotated[
        str, typer.Option("--type", "-t", help="convert: ConveRT's subwords; bpe, wordpiece: for pre-training.")
    ] = "convert",
    size: Annotated[
        int | None,
        typer.Option(
            help=f"bpe, wordpiece: maximum number of tokens (default: {SIZE:,}); convert: search the minimum count "
            "whose vocabulary comes closest to this size, such as 31476."
        ),
    ] = None,
    merges: Annotated[
        int | None,
        typer.Option(help="bpe, wordpiece: number of merges (default: 30,000 if there is room)."),
    ] = None,
    lower_case: Annotated[
        bool | None, typer.Option("--lower-case/--keep-case", help="bpe, wordpiece (default: lower case).")
    ] = None,
    min_count: Annotated[
        int | None, typer.Option(help=f"convert: minimum count of a subword (default: {_DEFAULTS.min_count}).")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help=f"convert: passes (default: {_DEFAULTS.iterations}).")] = None,
    max_length: Annotated[
        int | None, typer.Option(help=f"convert: maximum characters of a subword (default: {_DEFAULTS.max_length}).")
    ] = None,
    max_digits: Annotated[
        int | None,
        typer.Option(help=f"convert: maximum digits in a row (default: {_DEFAULTS.max_digits})."),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(help=f"convert: ids for unknown characters (default: {_DEFAULTS.buckets:,})."),
    ] = None,
    sample: Annotated[int, typer.Option(help="Maximum number of sentences to learn from.", min=1)] = 10_000_000,
    column: Annotated[list[str] | None, typer.Option(help="A column with texts; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample; equal seeds give equal vocabularies.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a tokenizer.json in --out.")] = False,
    progress: Progress = None,
) -> None:
    """Learn a vocabulary from texts, for `polyencoder train --architecture convert` or for pre-training."""
    if type not in TYPES:
        raise ConfigError(f"--type is {type!r}; it must be one of {', '.join(TYPES)}")
    of_convert = {
        "iterations": iterations,
        "min_count": min_count,
        "max_length": max_length,
        "max_digits": max_digits,
        "buckets": buckets,
    }
    of_pieces = {"merges": merges, "lower_case": lower_case}
    vain = _given(of_pieces if type == "convert" else of_convert)
    if vain:
        name = next(iter(vain))
        raise ConfigError(f"{name} is nothing that a vocabulary of the type {type} knows: leave it out", argument=name)
    check_writable(out / TOKENIZER, argument="out", overwrite=overwrite)
    if "-" in corpus:
        raise ConfigError("the corpus is read twice, so it cannot be standard input: give files")
    files, columns = expand(corpus), tuple(column or ())
    if type == "convert" or columns:
        read = partial(read_texts, files, columns=columns)
    else:
        read = partial(_units, files)
    texts = _Texts(read, corpus=", ".join(corpus), sample=sample, seed=seed, progress=shows_bars(progress))
    if type == "convert":
        said = _learn_convert(texts, out, size, SubwordSettings(**_given(of_convert)))
    else:
        options = _given({"type": type, "size": size, **of_pieces})
        said = _learn_pieces(texts, out, PieceSettings(**options))
    typer.echo(said)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _units(files: Sequence[str]) -> Iterator[str]:
    """The turns and sentences that `polyencoder pretrain` reads in files."""
    for file in files:
        for document in read_documents(file):
            yield from document.units


class _Texts:
    """The texts of a corpus, which `read` gives: `all` of them and, when their number is known, a `sample`."""

    def __init__(
        self, read: Callable[[], Iterator[str]], *, corpus: str, sample: int, seed: int, progress: bool
    ) -> None:
        self.corpus, self.progress = corpus, progress
        self._read, self._most, self._seed = read, sample, seed

    def all(self) -> Iterator[str]:
        yield from self._bar("counting")

    def sample(self, *, of: int) -> Iterator[str]:
        """Those that are learnt from, of so many.

        Raises:
            InputError: there is none at all.
        """
        if not of:
            raise InputError(f"{self.corpus}: no text in it")
        yield from sampled(self._bar("words"), count=self._most, of=of, seed=self._seed)

    def said(self, of: int) -> str:
        return f"{min(self._most, of):,} of {of:,} sentences"

    def _bar(self, what: str) -> Iterator[str]:
        texts, shown = self._read(), self.progress
        for text in tqdm(texts, desc=what, unit=" texts", unit_scale=True, disable=not shown, dynamic_ncols=True):
            if problem := unencodable(text):
                raise InputError(f"{self.corpus}: {problem}")
            yield text


def _learn_convert(texts: _Texts, out: Path, size: int | None, settings: SubwordSettings) -> str:
    there = sum(1 for _ in texts.all())
    words = count_words(texts.sample(of=there))
    if size is None:
        tokenizer, found = learn_subwords(words, settings), settings.min_count
    else:
        tokenizer, found = learn_subwords_of_size(words, size, settings, said=_say if texts.progress else None)
    path = out / TOKENIZER
    with explaining(path):
        write_text(path, tokenizer.to_str(pretty=True))
    ids = "1 id" if settings.buckets == 1 else f"{settings.buckets:,} ids"
    return (
        f"{path}: {len(tokenizer.subwords):,} subwords that are there at least {found:,} times in "
        f"{texts.said(there)}, and {ids} for unknown characters"
    )


def _learn_pieces(texts: _Texts, out: Path, settings: PieceSettings) -> str:
    characters = count_characters(texts.all(), settings)
    tokenizer = learn_pieces(texts.sample(of=characters.texts), characters, settings)
    save_tokenizer(out, tokenizer, special_tokens=ROLES)
    known = sum(form in tokenizer.get_vocab() for form in characters.counts)
    return (
        f"{out / TOKENIZER}: {tokenizer.get_vocab_size():,} tokens learnt from {texts.said(characters.texts)}; "
        f"{known:,} of their {len(characters.counts):,} characters at a place have one, "
        f"{characters.unknown(tokenizer):.3%} of the text is unknown"
    )


def _say(count: int, size: int) -> None:
    typer.echo(f"at least {count:,} times: {size:,} subwords", err=True)
