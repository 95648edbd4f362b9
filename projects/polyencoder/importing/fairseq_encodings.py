"""fairseq's encodings of texts (its option `bpe`), as tokenizers with the ids of a `dict.txt`.

fairseq encodes a text in two steps: an encoding splits it into symbols, and the dictionary has an id for each. In its
training data the first step was done before `fairseq-preprocess`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from polyencoder.errors import CheckpointError
from polyencoder.importing.bpe import (
    CONTINUED,
    END_OF_WORD,
    build_merge_tokenizer,
    complete,
    convert_symbol,
    read_lines,
    read_merges,
)
from polyencoder.importing.bpe import read_numbers as read_vocabulary
from polyencoder.importing.fairseq_dictionary import FairseqDictionary
from polyencoder.importing.patterns import keep_matches


@dataclass(frozen=True)
class Gpt2:
    """GPT-2's byte-level BPE (fairseq's `gpt2`), whose symbols are the numbers of its tokens."""

    encoder_json: str | os.PathLike[str]
    """Token -> number."""
    vocab_bpe: str | os.PathLike[str]
    """The merges."""

    def convert_dictionary(self, dictionary: FairseqDictionary) -> Tokenizer:
        merges, source = read_merges(self.vocab_bpe), os.fspath(self.encoder_json)
        numbers = read_vocabulary(source, kind="the encoder.json of GPT-2")
        tokens = {str(number): token for token, number in numbers.items()}
        dictionary.check(tokens.__contains__, marked=str.isdigit, source=source)
        vocabulary = {tokens.get(symbol, symbol): i for symbol, i in dictionary.ids.items()}
        if len(vocabulary) < len(dictionary.ids):
            raise CheckpointError(f"{source}: a token has the name of another symbol of {dictionary.path}")
        vocabulary = complete(vocabulary, merges, size=len(dictionary.ids))
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


@dataclass(frozen=True)
class Codes:
    """The merges of fastBPE or subword-nmt (`fastbpe`, `subword_nmt`), of words between white space."""

    codes: str | os.PathLike[str]

    def convert_dictionary(self, dictionary: FairseqDictionary) -> Tokenizer:
        # fastBPE writes how often a merge occurred, subword-nmt a version, without which it reads the codes differently
        has_counts = len(read_lines(self.codes, holds="the codes of fastBPE or subword-nmt")[0].split(" ")) == 3
        merges = read_merges(self.codes, versioned=not has_counts)
        merged = {left + right for left, right in merges}

        def is_piece(symbol: str) -> bool:
            piece = convert_symbol(symbol)
            return len(piece.removesuffix(END_OF_WORD)) == 1 or piece in merged

        # The papers' vocabulary has symbols that its merges do not make, which no text has: as many symbols as merges,
        # among them the pieces that are merged no further
        longer = sum(len(symbol.removesuffix(CONTINUED)) > 1 for symbol in dictionary.symbols)
        ends, final_pieces = END_OF_WORD, merged.difference(*merges)  # hel -> hel@@, lo</w> -> lo
        symbols = [piece.removesuffix(ends) if piece.endswith(ends) else piece + CONTINUED for piece in final_pieces]
        if len(merged) < longer or not dictionary.has(symbols):
            dictionary.check(is_piece, marked=lambda symbol: symbol.endswith(CONTINUED), source=os.fspath(self.codes))
        tokenizer = build_merge_tokenizer(
            [*dictionary.ids], merges, special=dictionary.special, unknown="<unk>", origin=dictionary.path
        )
        tokenizer.pre_tokenizer = keep_matches(r"[^\s]+")
        return tokenizer


Encoding = Gpt2 | Codes
"""Splits texts into the symbols of a dictionary."""


def build_tokenizer(encoding: Encoding, dictionary: FairseqDictionary) -> Tokenizer:
    """An encoding's tokenizer with the dictionary's ids, and special tokens around each text as in RoBERTa.

    Symbols that the dictionary lacks get ids behind them.

    Raises:
        CheckpointError: a file is missing or damaged, or does not belong to the dictionary.
    """
    tokenizer = encoding.convert_dictionary(dictionary)
    start, end = "<s>", "</s>"
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, dictionary.ids[end]), (start, dictionary.ids[start]), trim_offsets=True, add_prefix_space=False
    )
    tokenizer.add_special_tokens(dictionary.special)
    return tokenizer
