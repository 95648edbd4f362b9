"""Finds evaluation text in a corpus (contamination): long utterances in both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from polyencoder.data.negatives import normalized
from polyencoder.data.readers import records
from polyencoder.pretraining.documents import CorpusDocument

# Separators of utterances in the files of tasks: ParlAI's tabs and candidates, Ubuntu's marks
_BETWEEN = re.compile(r"[\t\n|]|__eou__|__eot__")
_NUMBER = re.compile(r"^\d+ ")  # of a line of ParlAI's


class Utterances:
    """Utterances of `min_words` words or more, as digests of 8 bytes, regardless of case, punctuation and articles."""

    def __init__(self, texts: Iterable[str], *, min_words: int) -> None:
        self._min_words = min_words
        self._known = {digest for text in texts if (digest := self._digest(text))}

    @classmethod
    def of_file(cls, file: str, *, min_words: int) -> Utterances:
        """All texts in the records of a file, at any depth.

        Raises:
            InputError: it cannot be read.
        """
        return cls((text for _, record in records(file) for text in _texts(record)), min_words=min_words)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, text: str) -> bytes | None:
        """The digest of a text, if it is one of them."""
        digest = self._digest(text)
        return digest if digest in self._known else None

    def _digest(self, text: str) -> bytes | None:
        if text.count(" ") + 1 < self._min_words:  # most are too short
            return None
        words = normalized(text)
        if words.count(" ") + 1 < self._min_words:
            return None
        return hashlib.blake2b(words.encode(), digest_size=8).digest()


@dataclass
class Overlap:
    """Overlap of a corpus and a file: affected documents of the corpus and utterances of the file.

    first: a place in the corpus and a text.
    """

    utterances: int
    documents: int = 0
    found: set[bytes] = field(default_factory=set)
    first: tuple[str, str] | None = None

    @property
    def share(self) -> float:
        """The share of the file's utterances that are in the corpus."""
        return len(self.found) / max(1, self.utterances)


def find_overlap(documents: Iterable[CorpusDocument], files: dict[str, Utterances]) -> dict[str, Overlap]:
    """Finds each file's overlap with a corpus, in one pass."""
    overlaps = {name: Overlap(len(utterances)) for name, utterances in files.items()}
    for document in documents:
        for name, utterances in files.items():
            found = [(digest, unit) for unit in document.units if (digest := utterances.find(unit))]
            if found:
                overlap = overlaps[name]
                overlap.documents += 1
                overlap.found.update(digest for digest, _ in found)
                overlap.first = overlap.first or (document.where, found[0][1])
    return overlaps


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for text in _BETWEEN.split(value):
            yield _NUMBER.sub("", text.strip())
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
