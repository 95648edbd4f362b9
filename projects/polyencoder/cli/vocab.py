"""`polyencoder vocab`: trains a vocabulary on your own texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from polyencoder.checks import explain_unencodable
from polyencoder.cli.shared.output import ProgressBars, say
from polyencoder.data.readers import expand
from polyencoder.data.texts import read_texts, sample_uniformly
from polyencoder.errors import ConfigError, InputError
from polyencoder.pretraining.documents import read_documents
from polyencoder.progress import create_progress
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.metadata import Needs
from polyencoder.storage.files import check_writable, check_writable_folder, reporting_write_errors, write_text
from polyencoder.storage.names import TOKENIZER, TOKENIZER_CONFIG
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords, learn_subwords_to_size
from polyencoder.validation import Count

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
    """Maximum number of sentences to train on."""
    column: tuple[str, ...] = ()
    """A column with texts; repeatable."""
    seed: int = 0
    """Seed of the sample; equal seeds give equal vocabularies."""
    overwrite: bool = False
    """Replace a vocabulary in --out."""
    progress: ProgressBars = None


def vocab(corpus: list[str], /, *, settings: VocabSettings) -> None:
    """Train a vocabulary on texts, for `polyencoder train --architecture convert` or for pre-training.

    Args:
        corpus: FILE or GLOB: one text per line, or JSON lines, CSV, TSV or Parquet with text, turns, context or
            response; plain, .gz, .bz2, .xz or .zst. Read twice.
    """
    from polyencoder.importing.folder import save_tokenizer
    from polyencoder.text.learning import ROLES, SIZE, PieceSettings, count_characters, learn_pieces

    kind, path = settings.type, settings.out / TOKENIZER
    check_writable_folder(settings.out, argument="out")
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        check_writable(settings.out / name, argument="out", overwrite=settings.overwrite)
    if "-" in corpus:
        raise ConfigError("the corpus is read twice, so it cannot be standard input: give files")
    files, name = expand(corpus), ", ".join(corpus)

    def count_texts(step: str) -> Iterator[str]:
        reads_texts = kind == "convert" or settings.column
        read = read_texts(files, columns=settings.column) if reads_texts else _read_units(files)
        for text in create_progress(read, step=step, unit="texts", show=settings.progress):
            if problem := explain_unencodable(text):
                raise InputError(f"{name}: {problem}")
            yield text

    def sample(total: int) -> Iterator[str]:
        if not total:
            raise InputError(f"{name}: no text in it")
        return sample_uniformly(count_texts("words"), count=settings.sample, of=total, seed=settings.seed)

    def describe_sentences(total: int) -> str:
        return f"{min(settings.sample, total):,} of {total:,} sentences"

    if kind == "convert":
        total = sum(1 for _ in count_texts("counting"))
        words, subwords = count_words(sample(total)), settings.subwords
        if settings.size is None:
            convert, count = learn_subwords(words, subwords), subwords.min_count
        else:
            convert, count = learn_subwords_to_size(
                words, settings.size, subwords, on_progress=None if settings.progress is False else _say
            )
        with reporting_write_errors(path):
            write_text(path, convert.to_str(pretty=True), overwrite=settings.overwrite)
            (settings.out / TOKENIZER_CONFIG).unlink(missing_ok=True)  # an earlier tokenizer's
        ids = "1 id" if subwords.buckets == 1 else f"{subwords.buckets:,} ids"
        say(
            f"{path}: {len(convert.subwords):,} subwords that occur at least {count:,} times in "
            f"{describe_sentences(total)}, and {ids} for unknown characters"
        )
        return
    pieces = PieceSettings(kind, SIZE if settings.size is None else settings.size, settings.merges, settings.lower_case)
    characters = count_characters(count_texts("counting"), pieces)
    tokenizer = learn_pieces(sample(characters.texts), characters, pieces)
    save_tokenizer(settings.out, tokenizer, special_tokens=ROLES, overwrite=settings.overwrite)
    num_known = sum(form in tokenizer.get_vocab() for form in characters.counts)
    say(
        f"{path}: {tokenizer.get_vocab_size():,} tokens trained on {describe_sentences(characters.texts)}; "
        f"{num_known:,} of their {len(characters.counts):,} forms of characters have one, "
        f"{characters.compute_unknown_share(tokenizer):.3%} of the text is "
        "unknown"
    )


def _read_units(files: Sequence[str]) -> Iterator[str]:
    for file in files:
        for document in read_documents(file):
            yield from document.units


def _say(count: int, size: int) -> None:
    say(f"at least {count:,} times: {size:,} subwords", err=True)
