"""Where a tokenizer comes from: learnt from text, or taken from a pre-trained model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from polyencoder.errors import ConfigError

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"

LEARNT_SPECIAL_TOKENS = {"start_token": START, "end_token": END, "separator": END, "pad_token": PAD}
"""The `TextConfig` fields of a vocabulary that `train_tokenizer` made."""


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int = 30_000, lower_case: bool = True) -> Tokenizer:
    """Learn a byte-level BPE vocabulary of at most `vocabulary_size` tokens, in memory bounded by the different words.

    Byte-level, as RoBERTa's: no text is unknown to it, and the same texts always give the same vocabulary (the
    library's WordPiece numbers its tokens differently from run to run).
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
    seen = 0

    def counted() -> Iterator[str]:
        nonlocal seen
        for text in texts:
            seen += bool(text.strip())
            yield text

    tokenizer.train_from_iterator(counted(), trainer)
    if not seen:
        raise ConfigError("no text to learn a vocabulary from: the task gave no utterance")
    return tokenizer


def special_tokens(tokenizer: Any) -> dict[str, str]:
    """The `TextConfig` fields of a transformers tokenizer: its padding, start, end and separator tokens.

    Encoders name them differently: BERT has [CLS] and [SEP], RoBERTa <s> and </s>. Where one is missing its nearest
    relative stands in.
    """
    start = tokenizer.cls_token or tokenizer.bos_token
    end = tokenizer.sep_token or tokenizer.eos_token
    if not (start and end and tokenizer.pad_token):
        raise ConfigError(
            f"the tokenizer {type(tokenizer).__name__} has no start, end or padding token: its model is not a "
            "bidirectional encoder; use one such as BERT, RoBERTa, MiniLM or ModernBERT"
        )
    return {"start_token": start, "end_token": end, "separator": end, "pad_token": tokenizer.pad_token}
