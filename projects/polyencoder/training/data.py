"""Opens the training and validation data of a run, in memory or streamed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

from polyencoder.data.collator import OWN_CANDIDATES
from polyencoder.data.epochs import Source, Streamed
from polyencoder.data.example import Example
from polyencoder.data.negatives import NUM_NEGATIVES, SAMPLED_FROM, NegativeSampler, count_negatives
from polyencoder.data.pairs import (
    HUB,
    add_sampled_candidates,
    count_held_out,
    estimate_pair_counts,
    expand_files,
    read_all_pairs,
    read_pair_rows,
    read_pairs,
    read_responses,
)
from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.settings.train import TrainSettings
from polyencoder.storage.digests import compute_fingerprint, iter_file_parts

Rows: TypeAlias = Iterable[Example | Mapping[str, Any]]
"""Records in memory: a `datasets.Dataset`, dictionaries, or examples."""
Splits: TypeAlias = Mapping[str, Rows]
"""Records by the name of their split, as in a `datasets.DatasetDict`."""
VALIDATION = ("validation", "valid", "dev")
"""Names of the split that a run is evaluated on."""

_log = logging.getLogger(__name__)

CHECKED = 1000  # examples of each streamed file, before training begins


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    train: the training examples, and size: their number, estimated for a stream. valid: validation examples with
    candidates. responses: the training responses; for a stream, the first ones. sampler: samples candidates for
    examples without their own; None if not needed. bad: the records skipped so far.
    """

    train: Sequence[Example] | Source[Example]
    size: int
    valid: list[Example]
    responses: Callable[[], Iterator[str]]
    sampler: NegativeSampler | None
    bad: BadExamples
    digest: str
    """The digest of the training and validation data; for a stream, of its files' sizes, beginnings and ends."""


def open_data(settings: TrainSettings, *, train: Rows | Splits | None = None, valid: Rows | None = None) -> RunData:
    """Opens the data that the settings name, or reads records in memory in its place.

    With splits (`Splits`), the run trains on the split `train` and, without other evaluation data, is evaluated on a
    split of `VALIDATION`. Without evaluation data the last training pairs are held out.

    Raises:
        InputError: the data cannot be read, or is too small, or splits lack `train`.
    """
    if isinstance(train, Mapping):
        train, valid = _choose_rows(train, valid, settings)
    bad = BadExamples(skip=settings.data.skip_bad_examples)
    files = settings.data
    held = _read_pairs(files.valid or "valid", valid, settings, bad) if files.valid or valid is not None else []
    if (files.valid or valid is not None) and not held:
        raise InputError(f"{files.valid or 'valid'}: has no pair to evaluate on")
    source: Sequence[Example] | Source[Example]
    held_out = ""
    if files.streaming:
        source, size, responses = _build_stream(settings, bad)
    else:
        pairs = _read_pairs(files.train, train, settings, bad)
        if not held and len(pairs) > 1:
            count = count_held_out(len(pairs))
            _log.warning("no validation data: the last %d of the %d pairs are held out", count, len(pairs))
            pairs, held = pairs[:-count], pairs[-count:]
            held_out = f", beside {count} held out for the evaluation: give validation data, or more pairs"
        unread = sum(bool(pair.candidates) for pair in pairs)
        if unread and settings.training.candidates not in OWN_CANDIDATES:
            _log.warning(
                "candidates %s: the candidates of %d training pairs, such as mined negatives, are not read; inline "
                "trains on them",
                settings.training.candidates,
                unread,
            )
        examples = list(_check_examples(pairs, settings, bad))
        source, size, responses = examples, len(examples), partial(read_responses, examples)
    if bad.count:
        _log.warning(bad.summarize())
    if size < 2:
        raise InputError(
            f"{settings.data.train}: has {size} training pairs; at least 2 are needed{held_out}",
            argument="valid" if held_out else None,
        )
    seed, inline = settings.training.seed, settings.training.candidates in OWN_CANDIDATES
    sampler = NegativeSampler(responses(), count=files.num_negatives, seed=seed, source=files.train)
    num_negatives = files.num_negatives if inline or "num_negatives" in settings.explicit else None
    ranked = add_validation_candidates(
        held, responses, num_negatives, in_training=inline, seed=seed, source=files.train
    )
    if isinstance(source, Sequence):
        trained: Iterator[str] = (f"{example!r}{_describe_numbers(example)}" for example in source)
    else:
        trained = iter_file_parts(name for name in expand_files(files.train) if not name.startswith(HUB))
    parts = chain(trained, (f"{(pair.text, pair.label, pair.candidates)!r}{_describe_numbers(pair)}" for pair in held))
    digest = compute_fingerprint(part.encode(errors="surrogatepass") for part in parts)
    return RunData(source, size, ranked, responses, sampler if inline else None, bad, digest)


def _choose_rows(splits: Splits, valid: Rows | None, settings: TrainSettings) -> tuple[Rows, Rows | None]:
    """The rows of the training split and, unless the settings or the caller name others, of the validation split."""
    if "train" not in splits:
        names = ", ".join(map(repr, splits)) or "nothing"
        raise InputError(f"{settings.data.train}: has no split 'train', only {names}; pass one of them")
    if valid is None and not settings.data.valid:
        valid = next((splits[name] for name in VALIDATION if name in splits), None)
    return splits["train"], valid


def _read_pairs(names: str, rows: Rows | None, settings: TrainSettings, bad: BadExamples) -> list[Example]:
    """The pairs of files, or of records in memory."""
    columns = settings.data.columns
    if rows is None:
        return list(read_all_pairs(names, columns=columns, bad=bad))
    return list(read_pair_rows(rows, name=names, columns=columns, bad=bad))


def _describe_numbers(example: Example) -> str:
    return "" if example.labels is None else repr(dict(example.labels))


def add_validation_candidates(
    pairs: Sequence[Example],
    responses: Callable[[], Iterable[str]],
    count: int | None,
    *,
    in_training: bool,
    seed: int,
    source: str,
) -> list[Example]:
    """Adds sampled candidates to validation pairs without candidates.

    count: as the settings give it; None for as many as there are, up to 19. in_training: whether training examples have
    `count` sampled candidates: validation pairs then have 19 or, if responses are too few, `count`. source: where
    the responses come from, in errors. InputError if there are fewer responses than that.
    """

    def complete_examples(count: int) -> list[Example]:
        return add_sampled_candidates(pairs, NegativeSampler(responses(), count=count, seed=seed, source=source))

    if count is None:
        return complete_examples(max(1, count_negatives(pairs, responses())))
    if not in_training:
        return complete_examples(count)
    try:
        return complete_examples(NUM_NEGATIVES)
    except InputError:
        return complete_examples(count)


def _build_stream(
    settings: TrainSettings, bad: BadExamples
) -> tuple[Source[Example], int, Callable[[], Iterator[str]]]:
    """A source that reads the training files in each epoch, its estimated size, and its first responses.

    The first examples of each file are read here, so that what is wrong with all of them is an error at once.
    """
    files = expand_files(settings.data.train)
    if unseekable := next((file for file in files if not file.startswith(HUB) and not os.path.isfile(file)), None):
        raise InputError(f"{unseekable}: cannot be read again in each epoch, which streaming needs")

    def read_examples(file: str) -> Iterator[Example]:
        return _check_examples(read_pairs(file, columns=settings.data.columns, bad=bad), settings, bad)

    def iter_responses() -> Iterator[str]:
        pairs = (pair for file in files for pair in read_pairs(file, columns=settings.data.columns, bad=bad))
        return islice(read_responses(pairs), SAMPLED_FROM)

    for file in files:
        for _ in islice(read_examples(file), CHECKED):
            pass
    estimate = partial(estimate_pair_counts, files, columns=settings.data.columns)
    source = Streamed(read_examples, files, buffer=settings.data.shuffle_buffer, estimate=estimate)
    size = source.count_items().examples
    _log.info("streaming about %d pairs, mixed in a buffer of %d", size, settings.data.shuffle_buffer)
    return source, size, iter_responses


def _check_examples(pairs: Iterable[Example], settings: TrainSettings, bad: BadExamples) -> Iterator[Example]:
    for pair in pairs:
        if settings.training.objective == "bce" and pair.labels is not None and max(pair.labels.values()) > 1:
            problem = f"objective bce reads labels as probabilities, but one is {max(pair.labels.values()):g}"
            advice = "divide them by the largest, give another objective, or leave out such records (skip_bad_examples)"
            bad(InputError(f"{pair.where}: {problem}; {advice}", argument="objective"))
            continue
        yield pair if settings.training.candidates in OWN_CANDIDATES else replace(pair, candidates=None)
