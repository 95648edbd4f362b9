"""Source of pre-training examples: a context, its response, and a response of another document."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from polyencoder.data.epochs import ALONE, Counts, Reader, estimate_counts
from polyencoder.data.example import Example
from polyencoder.data.readers import BadExamples, DataFile, OnBad, raise_it
from polyencoder.data.seeded_random import SeededRandom, shuffle_buffered
from polyencoder.pretraining.documents import CorpusDocument, read_documents

WINDOW = 10_000  # responses of a stream to draw negatives from
DRAWS = 20  # maximum draws for a negative


@dataclass(frozen=True, slots=True)
class PairExample(Example):
    """A context and its response, the label.

    other: a response of another document with another text, if one was drawn. key: the seed of the example's random
    choices, which are the same in every process.
    """

    other: str | None = None
    key: int = 0


class Corpus:
    """A source of examples from files, read in each epoch (`polyencoder.data.epochs.Source`).

    Files come in random order, examples through a buffer. Random numbers are drawn before readers take their shares, so
    that together they read the same examples as a single reader. In memory are the buffer, and `WINDOW` responses.

    held_out: the share of documents that is held out, `part`: which of them are read. history: maximum turns of a
    context. buffer: examples in memory, in random order. bad: gets the error of a record that cannot be used.
    """

    def __init__(
        self,
        files: Sequence[str],
        *,
        part: Literal["train", "held out", "all"] = "all",
        held_out: float = 0.0,
        history: int = 20,
        buffer: int = 20_000,
        bad: OnBad = raise_it,
    ) -> None:
        self.files, self.history, self._buffer, self._bad = list(files), history, buffer, bad
        self._part, self._held_out = part, held_out

    def iter_items(self, rng: SeededRandom | None = None, *, reader: Reader = ALONE) -> Iterator[PairExample]:
        files = self.files if rng is None else rng.shuffle_buffered(self.files)
        draws = SeededRandom("held out" if rng is None else f"examples {rng.draw_below(2**53)}")
        examples = self._iter_examples(chain.from_iterable(self._read_usable(file, self._bad) for file in files), draws)
        if rng is not None:
            examples = shuffle_buffered(examples, size=self._buffer, rng=rng)
        return reader.take_share(examples)

    def count_items(self) -> Counts:
        """Estimates the number of documents and examples from the first ones."""
        skip = BadExamples(skip=True)

        def count_documents(file: DataFile) -> Iterator[range]:
            return (document.responses for document in self._read_usable(file, skip))

        return estimate_counts(count_documents, self.files)

    def _read_usable(self, file: str | DataFile, bad: OnBad) -> Iterator[CorpusDocument]:
        for document in read_documents(file, bad=bad):
            is_in_part = self._part == "all" or document.is_held_out(self._held_out) == (self._part == "held out")
            if document.responses and is_in_part:
                yield document

    def _iter_examples(self, documents: Iterator[CorpusDocument], draws: SeededRandom) -> Iterator[PairExample]:
        ahead: deque[CorpusDocument] = deque()
        window: list[tuple[int, str]] = []  # responses with the numbers of their documents
        for document in documents:
            window += [(len(ahead), document.units[position]) for position in document.responses]
            ahead.append(document)
            if len(window) >= WINDOW:
                break
        num_ahead = len(ahead)
        read = (ahead.popleft() for _ in range(num_ahead))
        for number, document in enumerate(chain(read, documents)):
            for position in document.responses:
                turns, response = document.get_context(position, history=self.history), document.units[position]
                if number >= num_ahead:
                    window[draws.draw_below(len(window))] = number, response
                other = draw_other_response(number, response, window, draws)
                yield PairExample(turns, response, other=other, key=draws.draw_below(2**53))


def draw_other_response(
    document: int, response: str, window: Sequence[tuple[int, str]], draws: SeededRandom
) -> str | None:
    """Draws a response of another document from the window; each text is as often a negative as a positive.

    `window` has responses with the numbers of their documents.
    """
    for _ in range(DRAWS):
        number, text = draws.choose(window)
        if number != document and text != response:
            return text
    return None
