"""Tokenizers for models: trained on text, or a pre-trained model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from polyencoder.checks import check_choice
from polyencoder.config import TextConfig, TurnSeparator
from polyencoder.errors import ConfigError

NEWLINES = ("[NEWLINE]", "__newln__")
"""A line end's token: the papers' name, which is added where a vocabulary has neither, and their dictionaries' name."""

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"

TRAINED_SPECIAL_TOKENS = {"start_token": START, "end_token": END, "separator": END, "pad_token": PAD}
"""The `TextConfig` fields of a vocabulary that `train_tokenizer` made."""

SMALLEST_VOCABULARY = 260
"""The minimum number of its tokens: special tokens and the bytes."""


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int = 30_000, lower_case: bool = True) -> Tokenizer:
    """Trains a byte-level BPE vocabulary of at most `vocabulary_size` tokens, in memory bounded by the distinct words.

    It has at least `SMALLEST_VOCABULARY`. Byte-level, as RoBERTa's: no text is unknown to it, and the same texts always
    give the same vocabulary (the library's WordPiece numbers its tokens differently from run to run).
    """
    tokenizer = Tokenizer(models.BPE())
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if lower_case else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, UNKNOWN, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    num_texts = 0

    def count_texts() -> Iterator[str]:
        nonlocal num_texts
        for text in texts:
            num_texts += bool(text.strip())
            yield text

    tokenizer.train_from_iterator(count_texts(), trainer)
    if not num_texts:
        raise ConfigError("no text to train a vocabulary on: the task has no utterances")
    return tokenizer


def read_special_tokens(tokenizer: Any) -> dict[str, str]:
    """The `TextConfig` fields of a transformers tokenizer's special tokens, or their nearest equivalents."""
    start = tokenizer.cls_token or tokenizer.bos_token
    end = tokenizer.sep_token or tokenizer.eos_token
    if not (start and end and tokenizer.pad_token):
        raise ConfigError(
            f"the tokenizer {type(tokenizer).__name__} has no start, end or padding token: its model is not a "
            "bidirectional encoder; use one such as BERT, RoBERTa, MiniLM or ModernBERT"
        )
    return {"start_token": start, "end_token": end, "separator": end, "pad_token": tokenizer.pad_token}


def separate_turns(tokenizer: Tokenizer, special: dict[str, Any], kind: TurnSeparator) -> dict[str, Any]:
    """Sets the separator of turns in `TextConfig` fields; `newline` adds its token to the vocabulary if missing.

    The papers' contexts are "the concatenation of the utterances in the dialogue history separated by a special token
    [NEW-LINE]" (Section 4.1 of the first version); a BERT has seen [SEP] between its two texts.
    """
    check_choice("turn_separator", kind, get_args(TurnSeparator))
    if kind == "newline":
        present = [token for token in NEWLINES if tokenizer.token_to_id(token) is not None]
        if not present:
            tokenizer.add_special_tokens([NEWLINES[0]])  # special: who types it writes text
        return {**special, "separator": (present or NEWLINES)[0]}
    if kind == "none":
        return {**special, "separator": ""}
    if not special.get("surround", True):  # an encoder without special tokens has no separator either
        return special
    # keep the tokenizer's own separator or a delimiter; replace only none and newlines
    return {**special, "separator": special["end_token"]} if special["separator"] in ("", *NEWLINES) else special


def choose_separator(tokenizer: Tokenizer) -> TurnSeparator:
    """The separator of turns that an encoder was trained with: its newline token, if any, as in the papers."""
    return "newline" if tokenizer.token_to_id(NEWLINES[0]) is not None else "sep"


def get_turn_separator(config: TextConfig) -> TurnSeparator:
    """The kind of turn separator of a model; a custom delimiter counts as `sep`."""
    if config.separator in NEWLINES:
        return "newline"
    return "sep" if config.separator else "none"
