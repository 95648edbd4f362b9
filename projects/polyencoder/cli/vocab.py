"""`polyencoder vocab`: a vocabulary learnt from one's own texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from tqdm import tqdm

from polyencoder.checks import unencodable
from polyencoder.cli.shared.output import say, shows_bars
from polyencoder.data.readers import expand
from polyencoder.data.texts import read_texts, sampled
from polyencoder.errors import ConfigError, InputError
from polyencoder.importing.folder import save_tokenizer
from polyencoder.pretraining.documents import read_documents
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Count, Needs
from polyencoder.storage.checkpoint import TOKENIZER
from polyencoder.storage.files import check_writable, explaining, write_text
from polyencoder.text.learning import ROLES, SIZE, PieceSettings, count_characters, learn_pieces
from polyencoder.text.subwords import SubwordSettings, count_words, learn_subwords, learn_subwords_of_size

__all__ = ["vocab"]

_OF_PIECES = Needs("type", ("bpe", "wordpiece"))


@settings()
class VocabSettings(Settings):
    """Which vocabulary is learned, and from which texts."""

    out: Annotated[Path, Parameter(alias="-o")]
    """The folder to write tokenizer.json to."""
    type: Annotated[Literal["convert", "bpe", "wordpiece"], Parameter(alias="-t")] = "convert"
    """convert: ConveRT's subwords; bpe, wordpiece: for pre-training."""
    size: int | None = None
    """bpe, wordpiece: maximum number of tokens (default: 54,940); convert: search the minimum count whose vocabulary
    comes closest to this size, such as 31476."""
    merges: Annotated[int | None, _OF_PIECES] = None
    """bpe, wordpiece: number of merges (default: 30,000 if there is room)."""
    lower_case: Annotated[bool, Parameter(negative="--keep-case"), _OF_PIECES] = True
    """bpe, wordpiece: whether text is lower-cased."""
    subwords: Annotated[SubwordSettings, Needs("type", ("convert",))] = field(default_factory=SubwordSettings)
    sample: Count = 10_000_000
    """Maximum number of sentences to learn from."""
    column: tuple[str, ...] = ()
    """A column with texts; repeatable."""
    seed: int = 0
    """Seed of the sample; equal seeds give equal vocabularies."""
    overwrite: bool = False
    """Replace a tokenizer.json in --out."""
    progress: bool | None = None
    """Show progress bars on standard error (default: if it is a terminal)."""


def vocab(corpus: list[str], /, *, settings: VocabSettings) -> None:
    """Learn a vocabulary from texts, for `polyencoder train --architecture convert` or for pre-training.

    Args:
        corpus: FILE or GLOB: one text per line, or JSON lines, CSV, TSV or Parquet with text, turns, context or
            response; plain, .gz, .bz2, .xz or .zst. Read twice.
    """
    out, kind = settings.out, settings.type
    check_writable(out / TOKENIZER, argument="out", overwrite=settings.overwrite)
    if "-" in corpus:
        raise ConfigError("the corpus is read twice, so it cannot be standard input: give files")
    files = expand(corpus)
    if kind == "convert" or settings.column:
        read = partial(read_texts, files, columns=settings.column)
    else:
        read = partial(_units, files)
    bars = shows_bars(settings.progress)
    texts = _Texts(read, corpus=", ".join(corpus), sample=settings.sample, seed=settings.seed, progress=bars)
    if kind == "convert":
        say(_learn_convert(texts, out, settings.size, settings.subwords))
    else:
        size = SIZE if settings.size is None else settings.size
        say(_learn_pieces(texts, out, PieceSettings(kind, size, settings.merges, settings.lower_case)))


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
    say(f"at least {count:,} times: {size:,} subwords", err=True)
