"""`polyencoder overlap`: measures how much evaluation data a corpus contains (contamination)."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

from cyclopts import Parameter

from polyencoder.checks import checked_count
from polyencoder.cli.shared.output import ProgressBars, bar, say, shows_bars
from polyencoder.data.readers import expand
from polyencoder.errors import InputError
from polyencoder.pretraining.documents import read_documents
from polyencoder.pretraining.overlap import Utterances, find_overlap


def overlap(
    corpus: list[str],
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(alias="-d")],
    min_words: int = 8,
    at_most: float = 0.01,
    progress: ProgressBars = None,
) -> None:
    """Count the long utterances of evaluation data that are in a corpus; fail if there are too many.

    Args:
        corpus: FILE or GLOB, as for `polyencoder pretrain`.
        data: FILE or GLOB of evaluation data, repeatable: JSON lines, JSON, CSV or text.
        min_words: Count only utterances of at least this many words.
        at_most: Fail if more than this share of a file's utterances is in the corpus.
    """
    checked_count("min_words", min_words)
    files = {name: Utterances.of_file(name, min_words=min_words) for name in expand(list(data))}
    for name, utterances in files.items():
        if not len(utterances):
            raise InputError(f"{name}: no utterance of {min_words} words or more to look for", argument="min_words")
    documents = (document for file in expand(corpus) for document in read_documents(file))
    if (first := next(documents, None)) is None:
        raise InputError(f"{', '.join(corpus)}: no text in it")
    every = bar(chain([first], documents), step="corpus", unit=" documents", shown=shows_bars(progress))
    overlaps = find_overlap(every, files)
    for name, found in overlaps.items():
        say(
            f"{name}: {len(found.found):,} of its {found.utterances:,} utterances of {min_words} words or more "
            f"({found.share:.2%}) are in the corpus, in {found.documents:,} documents"
        )
        if found.first:
            say(f"  such as {found.first[0]}: {found.first[1]}")
    for name, found in overlaps.items():
        if found.share > at_most:
            raise InputError(
                f"{name}: {found.share:.2%} of its utterances are in the corpus, more than {at_most:.2%}: leave out of "
                "the corpus what they are from",
                argument="at_most",
            )
