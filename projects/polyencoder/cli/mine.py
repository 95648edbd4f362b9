"""`polyencoder mine`: hard negatives for a file of pairs, written as candidates to train on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from polyencoder.cli.shared.loading import check_index, check_reads_candidates, load
from polyencoder.cli.shared.output import ProgressBars, check_json_lines, say
from polyencoder.data.example import Example
from polyencoder.data.layouts import LAYOUT_COLUMNS, PARTS, Columns, has_labels
from polyencoder.data.loader import iter_batches
from polyencoder.data.pairs import read_pairs_and_records
from polyencoder.data.readers import BadExamples, OnBad, expand
from polyencoder.errors import ConfigError, InputError
from polyencoder.hub.resolve import exists
from polyencoder.index.entries import convert_value
from polyencoder.index.folder.files import DATABASE
from polyencoder.progress import create_progress
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Files, OneIndex
from polyencoder.settings.metadata import Without
from polyencoder.settings.training import HardNegatives, Similarity, parse_ranks
from polyencoder.storage.digests import compute_fingerprint
from polyencoder.storage.files import atomic_write, check_writable, reporting_write_errors
from polyencoder.validation import Count

if TYPE_CHECKING:
    from polyencoder.ranker import Ranker


@settings()
class MineSettings(Settings):
    """The pairs to add hard negatives to, and which ones."""

    model: RankerSettings
    pairs: Annotated[Files, Parameter(alias="-p")]
    """FILE or GLOB, comma-separated: JSON lines, CSV, TSV or Parquet with `context`, a text or a list of turns, and
    `response`. Read twice."""
    out: Annotated[str, Parameter(alias="-o")]
    """A .jsonl file, for -t selection:jsonl --candidates inline."""
    columns: Columns = field(default_factory=Columns)
    out_column: str = "candidates"
    """Name of the column to write the response and its negatives in."""
    negatives: Annotated[Count, Parameter(alias="-n")] = 4
    """Negatives per pair."""
    ranks: str = "1-100"
    """Ranks among the wrong responses, best first, to draw from, such as 10-100."""
    max_positive_similarity: Similarity | None = None
    """Leave out near-duplicates of right responses: negatives whose vectors have a cosine above this, such as 0.95,
    with theirs."""
    index: OneIndex | None = None
    """Mine in this index (default: the responses of the pairs)."""
    words: Annotated[bool, Without("index")] = False
    """Mine among the responses by their words (BM25) instead of by vectors. The model may be a cross-encoder."""
    skip_bad_examples: bool = False
    """Skip and count records that cannot be used, instead of stopping at them."""
    batch_size: Count = 64
    """Contexts per batch."""
    overwrite: bool = False
    """Replace --out if it exists."""
    progress: ProgressBars = None


def mine(settings: MineSettings) -> None:
    """Add hard negatives to pairs: wrong responses that the model, or BM25, ranks high.

    A response, or candidate with a label above 0, that any of the pairs has for the same context is never one of its
    negatives. Negatives replace the candidates with a label of 0. Of a record with labels, the new list replaces the
    candidates also where it is written under another name.
    """
    out = settings.out
    chosen = HardNegatives(
        count=settings.negatives,
        ranks=parse_ranks(settings.ranks),
        max_similarity=settings.max_positive_similarity,
    )
    files = expand(settings.pairs)
    check_writable(out, argument="out", overwrite=settings.overwrite, read=files)
    check_json_lines(out)
    _check_column(settings)
    bad = BadExamples(skip=settings.skip_bad_examples)
    right = _read_responses(files, settings, bad)
    check_index(settings.index)
    ranker = load(settings.model)
    responses = list(dict.fromkeys(text for texts in right.values() for text in texts))
    counts = {"pairs": 0, "negatives": 0}
    with (
        _open_miner(ranker, responses, chosen, settings) as find,
        reporting_write_errors(out),
        atomic_write(out, overwrite=settings.overwrite) as temporary,
        open(temporary, "w", encoding="utf-8") as file,
        create_progress(step="mining", unit="pairs", show=settings.progress) as bar,
    ):
        for batch in iter_batches(_read_pairs(files, settings, bad), settings.batch_size):
            contexts, labels = [pair.turns for pair, _ in batch], [pair.label for pair, _ in batch]
            mined = find(contexts, labels, [right[_make_key(pair)] for pair, _ in batch])
            for (pair, record), texts in zip(batch, mined, strict=True):
                file.write(_format_json(_add_negatives(record, pair, texts, settings)) + "\n")
                counts["negatives"] += len(texts)
            counts["pairs"] += len(batch)
            bar.update(len(batch))
        if not counts["negatives"]:
            raise InputError(
                f"{out}: not written, as no pair has a hard negative: there are too few wrong responses for ranks "
                f"{settings.ranks}, or a margin leaves all of them out",
                argument="ranks",
            )
    if skipped := bad.summarize():
        say(f"polyencoder: {skipped}", err=True)
    average = f"{counts['negatives'] / counts['pairs']:.2f} hard negatives each"
    say(f"{out}: {counts['pairs']:,} pairs, {average}; train on them with --candidates inline")


Find = Callable[[list[Sequence[str]], list[str], list[list[str]]], list[list[str]]]
"""(contexts, labels, right texts) -> the hard negatives of each."""


@contextmanager
def _open_miner(ranker: Ranker, responses: list[str], chosen: HardNegatives, settings: MineSettings) -> Iterator[Find]:
    """Mines by words, or in an index that is open meanwhile."""
    from polyencoder.index.open import open_index
    from polyencoder.training.hard_negatives import Miner

    if settings.words:
        by_words = Miner.from_texts(ranker, responses, chosen)
        yield lambda contexts, labels, right: by_words(contexts, labels, right=right)
        return
    if settings.index is None:
        check_reads_candidates(ranker, instead="mine in that, with --index", argument="model")
    index = (
        open_index(settings.index, ranker) if settings.index else ranker.index(responses, progress=settings.progress)
    )
    with index:
        by_vectors = Miner.from_index(ranker, index, chosen)
        yield lambda contexts, labels, right: by_vectors(ranker.encode_contexts(contexts), labels, right=right)


def _add_negatives(record: dict[str, Any], pair: Example, texts: list[str], settings: MineSettings) -> dict[str, Any]:
    """The record with its right texts and mined negatives as candidates, and labels of these if it has labels."""
    columns, candidates = settings.columns, [*pair.right, *texts]
    whole = {**record, settings.out_column: candidates}
    if has_labels(record, columns, candidates, where=pair.where):
        if settings.out_column != columns.candidates:  # labels belong to one list
            whole.pop(columns.candidates, None)
        numbers = pair.labels or {pair.label: 1.0}
        whole[columns.labels] = [*(numbers[text] for text in pair.right), *(0.0 for _ in texts)]
    return whole


def _check_column(settings: MineSettings) -> None:
    """Raises ConfigError if the mined candidates would replace what the pairs are read from."""
    name, columns = settings.out_column, settings.columns
    is_path = os.sep in name or os.path.splitext(name)[1] or exists(os.path.join(name, DATABASE))
    if is_path and exists(name):  # any other folder may have the column's name
        raise ConfigError(
            f"out_column is {name!r}, a file or an index, but it is the name of a column to write; negatives of other "
            "candidates come from an index of them, --index",
            argument="out_column",
        )
    reserved = {*LAYOUT_COLUMNS, *(getattr(columns, part) for part in PARTS)} - {"candidates"}
    if name in reserved:
        raise ConfigError(
            f"out_column is {name!r}, a column that the pairs are read from: give another name", argument="out_column"
        )


def _read_responses(files: list[str], settings: MineSettings, bad: OnBad) -> dict[str, list[str]]:
    """All responses of each context, under its key."""
    right: dict[str, list[str]] = {}
    for pair, _ in _read_pairs(files, settings, bad):
        right.setdefault(_make_key(pair), []).extend(pair.right)
    if not right:
        raise InputError(f"{', '.join(files)}: no pair in it")
    return right


def _read_pairs(files: list[str], settings: MineSettings, bad: OnBad) -> Iterator[tuple[Example, dict[str, Any]]]:
    """The pairs with their records for JSON. InputError for labels that seem to be of the written column."""
    columns, name = settings.columns, settings.out_column
    for file in files:
        for pair, record in read_pairs_and_records(file, columns=columns, add_response=True, bad=bad):
            texts = record.get(name)
            has_candidates = name == columns.candidates or pair.candidates is not None
            if texts and not has_candidates and has_labels(record, columns, texts, where=pair.where):
                raise InputError(
                    f"{pair.where}: its labels seem to be of {name!r}, but candidates with labels are read from "
                    f"{columns.candidates!r}: rename that column",
                    argument="out_column",
                )
            try:
                _format_json(record)
            except TypeError as error:
                bad(InputError(f"{pair.where}: a column cannot be written. {error}; leave it out"))
            else:
                yield pair, record


def _format_json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, default=convert_value)


def _make_key(pair: Example) -> str:
    return compute_fingerprint([pair.text])
