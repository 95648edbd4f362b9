"""Long texts as candidates: each passage of a document is a candidate, and a search gives each document once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from polyencoder.errors import ConfigError, InputError
from polyencoder.index.entries import Candidate, check_candidate
from polyencoder.text.passages import split_text
from polyencoder.validation import AtLeastZero, Count, validated

if TYPE_CHECKING:
    from polyencoder.text import TextEncoder

DOCUMENT = "document"
"""The metadata field with a passage's document, its id."""


@validated
class Split:
    """How an index splits texts."""

    tokens: Count
    """The maximum tokens of a passage, without special tokens."""
    overlap: AtLeastZero = 0
    """Tokens of sentences, at most, that a passage repeats of the one before."""

    def check(self, encoder: TextEncoder) -> None:
        """Raises ConfigError for passages longer than the model reads, or of repetitions alone."""
        if self.tokens > (room := encoder.candidate_room):
            raise ConfigError(
                f"split is {self.tokens}, but the model reads {room} tokens of a candidate: give at most that",
                argument="split",
            )
        if self.overlap >= self.tokens:
            raise ConfigError(f"overlap is {self.overlap}; it must be below split, {self.tokens}", argument="overlap")

    def split_candidates(self, candidates: Iterable[Candidate], encoder: TextEncoder) -> Iterator[Candidate]:
        """Yields the passages of candidates: `id#1`, `id#2` ..., with the id as metadata `document`.

        Raises InputError for a candidate with a vector, or with another `document`, and for an invalid one.
        """
        for candidate in candidates:
            where = candidate.where or repr(candidate.id)
            if candidate.vector is not None:
                raise InputError(f"{where}: has a vector, but this index splits texts, and encodes the passages")
            try:
                text, document, _ = check_candidate(candidate)
            except (TypeError, ValueError) as error:
                raise InputError(f"{where}: not a candidate that an index can hold: {error}") from None
            metadata = candidate.metadata or {}
            if metadata.get(DOCUMENT, document) != document:
                raise InputError(f"{where}: has metadata {DOCUMENT!r}, which is the name for the id in a split index")
            passages = split_text(text, encoder, tokens=self.tokens, overlap=self.overlap)
            for number, passage in enumerate(passages, 1):
                fields = {**metadata, DOCUMENT: document}
                yield candidate._replace(id=f"{document}#{number}", text=passage, metadata=fields)
