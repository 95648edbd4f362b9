"""Trains BPE and WordPiece vocabularies on a stream of texts, with the `tokenizers` library.

The paper's vocabulary is "computed using BPE trained on lower-cased" text "with 30k merges. The resulting dictionary
has 54,940 terms" (Humeau et al., 2019, the first version): special tokens, the merges, and single characters; the same
character within a word and at its end is two tokens. Rarer characters are unknown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import regex
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from polyencoder.checks import check_choice
from polyencoder.errors import ConfigError
from polyencoder.text.vocabulary import NEWLINES, PAD, UNKNOWN

PieceType = Literal["bpe", "wordpiece"]

SIZE, MERGES = 54_940, 30_000  # the paper's

SURROUND, MASK = "[S]", "[MASK]"
ROLES = {"pad_token": PAD, "unk_token": UNKNOWN, "cls_token": SURROUND, "sep_token": SURROUND, "mask_token": MASK}
"""Roles of the special tokens in transformers. Inputs are "surrounded with the special token [S]" (Section 4.1)."""

_SPECIAL = (*dict.fromkeys(ROLES.values()), NEWLINES[0])
# As ParlAI's BPE dictionaries split texts, the paper's among them: words and signs. Marks stay in their word.
_LETTER, _SIGN = r"[\p{L}\p{M}\p{N}_]", r"[^\p{L}\p{M}\p{N}_\s]"
_MIN_FREQUENCY = 2  # occurrences of a merged pair
_ALPHABET = 2_000  # maximum characters with positions in a size without `merges`: BERT's 1,000, in two positions each


class _Marks(NamedTuple):
    """The prefix or suffix that marks a piece's position in its word."""

    before: str
    behind: str
    edge: regex.Pattern[str]
    """Matches the characters at the edge of words: those with the mark, or those without."""
    marks_edge: bool

    def mark(self, character: str) -> str:
        return f"{self.before}{character}{self.behind}"

    def format_plain(self, form: str) -> str:
        return form.removeprefix(self.before).removesuffix(self.behind)

    def join(self, left: str, right: str) -> str:
        return left + right.removeprefix(self.before)

    def get_arguments(self) -> dict[str, Any]:
        """The library's arguments for the marks that are not empty."""
        marks = {"continuing_subword_prefix": self.before, "end_of_word_suffix": self.behind}
        return {name: mark for name, mark in marks.items() if mark}


_MARKS = {
    "bpe": _Marks("", "</w>", regex.compile(rf"{_LETTER}(?!{_LETTER})|{_SIGN}"), True),  # the end of a word
    "wordpiece": _Marks("##", "", regex.compile(rf"(?<!{_LETTER}){_LETTER}|{_SIGN}"), False),  # not its beginning
}


@dataclass(frozen=True)
class PieceSettings:
    """Settings of a vocabulary of `size` tokens, of which `merges` are merged (default: 30,000 or as many as fit)."""

    type: PieceType = "bpe"
    size: int = SIZE
    merges: int | None = None
    lower_case: bool = True

    def __post_init__(self) -> None:
        check_choice("type", self.type, get_args(PieceType))
        min_size = len(_SPECIAL) + (self.merges or 0) + 1
        if self.size < min_size:
            raise ConfigError(
                f"size is {self.size}; with {self.merges or 0:,} merges and {len(_SPECIAL)} special tokens it must be "
                f"at least {min_size:,}",
                argument="size",
            )
        if self.merges is not None and self.merges < 0:
            raise ConfigError(f"merges is {self.merges}; it must be 0 or more", argument="merges")


@dataclass(frozen=True)
class Characters:
    """Character counts of texts. `counts`: by character with the mark of its position; `texts`: their number."""

    counts: Counter[str]
    texts: int

    def sort_by_frequency(self) -> list[str]:
        """Sorted by frequency, then by code point."""
        return [form for form, _ in sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))]

    def compute_unknown_share(self, tokenizer: Tokenizer) -> float:
        """The share of occurrences without a token in a vocabulary."""
        vocabulary = tokenizer.get_vocab()
        return sum(count for form, count in self.counts.items() if form not in vocabulary) / max(1, self.counts.total())


def count_characters(texts: Iterable[str], settings: PieceSettings) -> Characters:
    """Counts characters by their position in the word."""
    normalize = _build_normalizer(settings).normalize_str
    number, everywhere, edges = 0, Counter[str](), Counter[str]()
    marks = _MARKS[settings.type]
    for text in texts:
        text = normalize(text)
        number += 1
        everywhere.update(text)
        edges.update(marks.edge.findall(text))
    for space in [character for character in everywhere if regex.match(r"\s", character)]:
        del everywhere[space]
    inner = everywhere - edges
    marked, plain = (edges, inner) if marks.marks_edge else (inner, edges)
    return Characters(plain + Counter({marks.mark(character): count for character, count in marked.items()}), number)


def learn_pieces(texts: Iterable[str], characters: Characters, settings: PieceSettings) -> Tokenizer:
    """Trains a vocabulary on a stream of texts, deterministically: special tokens, `characters`, and merges."""
    if not characters.counts:
        raise ConfigError("no characters to train a vocabulary on: the texts are empty")
    forms, room, join = characters.sort_by_frequency(), settings.size - len(_SPECIAL), _MARKS[settings.type].join
    count = settings.merges
    if count is None:
        count = min(MERGES, room - min(len(forms), _ALPHABET, room))
    merges = _learn_merges(texts, forms[: room - count], settings, count=count)
    merged = list(dict.fromkeys(join(*merge) for merge in merges))
    # each input of a merge has a token, though rarer characters may be among them
    inputs = {piece for merge in merges for piece in merge} - set(merged)
    unmerged = [form for form in forms if form not in inputs]
    used_forms = inputs | set(unmerged[: max(0, room - len(merged) - len(inputs))])
    tokens = dict.fromkeys([*_SPECIAL, *(form for form in forms if form in used_forms), *sorted(inputs), *merged])
    return _build_tokenizer({token: i for i, token in enumerate(tokens)}, merges, settings)


def _learn_merges(
    texts: Iterable[str], forms: list[str], settings: PieceSettings, *, count: int
) -> list[tuple[str, str]]:
    """Trains the first merges, without characters outside the vocabulary."""
    marks = _MARKS[settings.type]
    alphabet = sorted({marks.format_plain(form) for form in forms})
    # The library numbers marked characters in the order of its hash table of words, and breaks ties by these numbers:
    # numbered before, as if they were special tokens, the same texts always give the same merges.
    numbered = [marks.mark(character) for character in alphabet]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = _build_normalizer(settings), _build_pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=len(numbered) + len(alphabet) + count,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=numbered,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
        **marks.get_arguments(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    # several merges may make the same token, so there can be more of them than the library was asked for
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"][:count]]


def _build_tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]], settings: PieceSettings) -> Tokenizer:
    marks = _MARKS[settings.type]
    if settings.type == "bpe":
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=UNKNOWN, end_of_word_suffix=marks.behind))
        tokenizer.decoder = decoders.BPEDecoder(suffix=marks.behind)
    else:
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN, continuing_subword_prefix=marks.before))
        tokenizer.decoder = decoders.WordPiece(prefix=marks.before)
    tokenizer.normalizer, tokenizer.pre_tokenizer = _build_normalizer(settings), _build_pre_tokenizer()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SURROUND}:0 $A:0 {SURROUND}:0",
        pair=f"{SURROUND}:0 $A:0 {SURROUND}:0 $B:1 {SURROUND}:1",
        special_tokens=[(SURROUND, vocabulary[SURROUND])],
    )
    return tokenizer


def _build_normalizer(settings: PieceSettings) -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFC(), *([normalizers.Lowercase()] if settings.lower_case else [])])


def _build_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(rf"{_LETTER}+|{_SIGN}"), behavior="removed", invert=True)
