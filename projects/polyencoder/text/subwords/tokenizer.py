"""`SubwordTokenizer`: splits words into the ids of a trained vocabulary, tens of thousands of utterances a second."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import regex

from polyencoder.errors import ConfigError

MARKER = "\ufe4f"
"""Where a word begins."""

_SEPARATES = regex.compile(r"[\p{P}\p{Z}]")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_RUNS = regex.compile(r"[^\p{P}\p{Z}]+|[\p{P}\p{Z}]+")
# The same for text of ASCII alone, where the standard library's expressions are nearly twice as fast
_ASCII = "".join(re.escape(chr(i)) for i in range(128) if _SEPARATES.match(chr(i)))
_ASCII_RUNS = re.compile(rf"[^{_ASCII}]+|[{_ASCII}]+")


def is_separator(character: str) -> bool:
    """Whether a character is punctuation or a separator."""
    return _SEPARATES.match(character) is not None


def split_runs(text: str) -> list[str]:
    """Lower-cases a text and splits it into runs, whose concatenation it is; a space between two words is a run."""
    if text.isascii():
        return _ASCII_RUNS.findall(text.lower())
    return list(_RUNS.findall(text.translate(_LOWER)))


def split_words(text: str) -> list[str]:
    """The words of a text, without their marks, as in ConveRT's published graphs.

    Only A-Z are lower-cased. A word is a run of characters without punctuation and separators (Unicode's P and Z), or
    a run of the latter, such as `", "` and `"..."`. A single space between two words of the first kind is implied.

    >>> split_words("Well, the cat -  yes")
    ['well', ', ', 'the', 'cat', ' -  ', 'yes']
    """
    pieces = split_runs(text)
    last = len(pieces) - 1
    return [run for position, run in enumerate(pieces) if run != " " or position in (0, last)]


BUCKETS = 1_000
"""Ids for characters that are not in the vocabulary (Section 2.1)."""

FORMAT, VERSION = "polyencoder.subwords", 1
SPECIAL = ("[PAD]", "[EXTRA]")  # ids behind all others, which no text has: padding, and where extra contexts begin

MEMORY = 1 << 18  # words whose ids are remembered: nearly all that a language's speakers use
LONGEST = 100  # characters of a word that is remembered

_K0, _K2 = 0xC3A5C85C97CB3127, 0x9AE16A3B2F90404F
_64_BITS = (1 << 64) - 1


class SubwordTokenizer:
    """Splits words into the longest subwords that the vocabulary has, from left to right (Section 2.1 of ConveRT).

    Ids: 0 to V - 1 are the vocabulary, where subwords that begin a word begin with `MARKER`; V to V + buckets - 1 are
    of other characters, the same id for the same character; then padding and the beginning of extra contexts, which
    have no embeddings. Threads may share a tokenizer. ConfigError: an empty or duplicate subword.
    """

    def __init__(self, subwords: Iterable[str], *, buckets: int = BUCKETS) -> None:
        self.subwords = list(subwords)
        self.buckets = buckets
        self._ids = {subword: i for i, subword in enumerate(self.subwords)}
        if len(self._ids) < len(self.subwords) or "" in self._ids:
            raise ConfigError("the subword vocabulary has an empty or duplicate subword")
        if buckets < 1:
            raise ConfigError(f"there are {buckets} buckets for unknown characters; there must be at least 1")
        self._longest = max(map(len, self.subwords), default=1)
        self._special = {name: len(self.subwords) + buckets + i for i, name in enumerate(SPECIAL)}
        self._words = _Words(self)

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; empty for an empty text."""
        get_ids = self._words.__getitem__
        rows = []
        for text in texts:
            pieces = split_runs(text)
            if pieces and (pieces[0] == " " or pieces[-1] == " "):  # a word, only at the ends of a text
                rows.append([i for word in split_words(text) for i in self.encode_word(MARKER + word)])
            else:
                rows.append(list(chain.from_iterable(map(get_ids, pieces))))
        return rows

    def tokenize(self, text: str) -> list[str]:
        """The subwords of a text, and its unknown characters, as text."""
        return [piece for word in split_words(text) for piece in self.split_word(MARKER + word)]

    def token_to_id(self, token: str) -> int | None:
        """The id of a subword or a special token; None for any other text."""
        return self._special.get(token, self._ids.get(token))

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Ids by token, without unknown characters."""
        return self._ids | (self._special if with_added_tokens else {})

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """The number of ids, without or with the special ones: the former is the number of embeddings."""
        return len(self.subwords) + self.buckets + (len(SPECIAL) if with_added_tokens else 0)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of these ids, lower-cased; an unknown character is U+FFFD."""
        text = ""
        for i in ids:
            if i < len(self.subwords):
                text += self.subwords[i]
            elif i < len(self.subwords) + self.buckets:
                text += "\ufffd"
            elif not skip_special_tokens:
                text += SPECIAL[i - len(self.subwords) - self.buckets]
        return _join_characters(text)

    def to_str(self, pretty: bool = False) -> str:
        """The tokenizer as JSON."""
        values = {"format": FORMAT, "version": VERSION, "buckets": self.buckets, "subwords": self.subwords}
        return json.dumps(values, ensure_ascii=False, indent=1 if pretty else None)

    @classmethod
    def from_str(cls, text: str | bytes, *, origin: str = "the tokenizer") -> SubwordTokenizer:
        """Reads the output of `to_str`. Raises ConfigError, which names the `origin`, for anything else."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{origin}: not valid JSON ({error})") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ConfigError(f"{origin}: not a tokenizer of subwords (its `format` is not {FORMAT!r})")
        if values.get("version") != VERSION:
            raise ConfigError(
                f"{origin}: version {values.get('version')!r} of subwords, but this version of polyencoder reads "
                f"{VERSION}; install the version that wrote it"
            )
        subwords, buckets = values.get("subwords"), values.get("buckets")
        if not isinstance(subwords, list) or not all(isinstance(subword, str) for subword in subwords):
            raise ConfigError(f"{origin}: its `subwords` are not a list of texts")
        if not isinstance(buckets, int) or isinstance(buckets, bool):
            raise ConfigError(f"{origin}: its `buckets` are {buckets!r}, not a number")
        try:
            return cls(subwords, buckets=buckets)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None

    def encode_word(self, word: str) -> list[int]:
        """The ids of a word with its mark."""
        return [self._get_id(piece) for piece in self.split_word(word)]

    def split_word(self, word: str) -> list[str]:
        """Splits a word greedily into the longest prefixes in the vocabulary, or single characters."""
        pieces, start, end = [], 0, len(word)
        while start < end:
            stop = min(end, start + self._longest)
            while stop > start + 1 and word[start:stop] not in self._ids:
                stop -= 1
            pieces.append(word[start:stop])
            start = stop
        return pieces

    def _get_id(self, piece: str) -> int:
        id_ = self._ids.get(piece)
        return len(self.subwords) + compute_fingerprint64(piece) % self.buckets if id_ is None else id_

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SubwordTokenizer, buckets=self.buckets), (self.subwords,)


class _Words(dict[str, list[int]]):
    """A cache of the ids of runs, segmented on first use; a single space between words has no ids."""

    def __init__(self, tokenizer: SubwordTokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, run: str) -> list[int]:
        ids = [] if run == " " else self._tokenizer.encode_word(MARKER + run)
        if len(run) <= LONGEST:
            if len(self) >= MEMORY:
                self.clear()
            self[run] = ids
        return ids


def is_subword_tokenizer(text: str) -> bool:
    """Whether a `tokenizer.json` is a ConveRT subword vocabulary of any version, by its first key."""
    return re.match(rf'\s*{{\s*"format"\s*:\s*"{re.escape(FORMAT)}"', text) is not None


def _join_characters(text: str) -> str:
    """Joins marked words, and restores the dropped space between two words of letters."""
    joined = ""
    for word in text.split(MARKER):
        if joined and word and not is_separator(joined[-1]) and not is_separator(word[0]):
            joined += " "
        joined += word
    return joined


def compute_fingerprint64(character: str) -> int:
    """FarmHash's `Fingerprint64` of a character's one to four UTF-8 bytes: 64 bits, unsigned.

    TensorFlow's `StringToHashBucketFast` is this function, so unknown characters get the ids that the published graphs
    give them. Source: `HashLen0to16` in FarmHash's farmhash.cc (MIT licence); a character needs half of it.
    """
    data = character.encode()
    length = len(data)
    if length == 4:
        word = int.from_bytes(data, "little")
        return _hash_16(length + (word << 3), word, _K2 + length * 2)
    first, middle, last = data[0], data[length >> 1], data[-1]
    mixed = ((first + (middle << 8)) * _K2 ^ (length + (last << 2)) * _K0) & _64_BITS
    return (mixed ^ mixed >> 47) * _K2 & _64_BITS


def _hash_16(u: int, v: int, factor: int) -> int:
    a = (u ^ v) * factor & _64_BITS
    a ^= a >> 47
    b = (v ^ a) * factor & _64_BITS
    b ^= b >> 47
    return b * factor & _64_BITS
