"""Converts ParlAI's byte-level dictionaries, `gpt2`, `slow_bytelevel_bpe` and `bytelevelbpe`, to fast tokenizers.

All three work like GPT-2's: a pattern splits the text, its bytes become 256 characters, merges join them.
They differ in how `X.dict` writes a token. `bytelevelbpe` writes the characters unchanged; the others write `\\x` and
two digits for each byte of a character that is not ASCII, and `gpt2` keeps its merges in ParlAI's data folder. Those
are not needed: a merge joins two earlier tokens, so the merges follow from the vocabulary, in the order of training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import regex
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyencoder.errors import CheckpointError
from polyencoder.importing.bpe import Merge, read_merges, read_numbers
from polyencoder.importing.patterns import build_class

BYTE_LEVEL = ("gpt2", "slow_bytelevel_bpe", "bytelevelbpe")
_SPACE = "\u0120"  # the character for byte 32
# GPT-2's, with the letters, numbers and spaces of Python's `regex`
_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^{s}{L}{N}]+|[{s}]+(?![^{s}])|[{s}]+"
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")
# Tokens that ParlAI appends to a vocabulary; no merge makes them
_ADDED = re.compile(r"__(?:p1|p2|FP16_PAD_\d+)__")


def build_byte_level(
    dict_file: Path, kind: str, tokens: list[str], special: list[str], *, prefix_space: bool | None
) -> tuple[Tokenizer, str | None]:
    """The tokenizer, and the token of an empty text, if it has one.

    tokens: of the dictionary, in the order of their ids. special: padding, start, end, unknown. prefix_space: ParlAI's
    `bpe_add_prefix_space`.
    """
    special_tokens = set(special)
    if kind == "bytelevelbpe":
        names = {token: _check_whole(token, i) for i, token in enumerate(tokens)}
        merges = read_merges(f"{dict_file}-merges.txt")
    else:
        names = {token: token if token in special_tokens else _encode_signs(token, i) for i, token in enumerate(tokens)}
        trained = [name for token, name in names.items() if token not in special_tokens]
        merges = _derive_merges(trained) if kind == "gpt2" else read_merges(f"{dict_file}-merges.txt")
    vocabulary = {name: i for i, name in enumerate(names.values())}
    if len(vocabulary) < len(tokens):
        raise CheckpointError(f"{dict_file}: two of its tokens have the same name: not a byte-level dictionary")
    for merge in merges:
        if missing := [piece for piece in (*merge, "".join(merge)) if piece not in vocabulary]:
            raise CheckpointError(f"{dict_file}: has no token {missing[0]!r}, which its merges need")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "bytelevelbpe":  # Hugging Face's tokenizer, in ParlAI too, where special tokens are found in texts
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space is not False)
        tokenizer.add_tokens([AddedToken(token, normalized=True, special=False) for token in special])
        return tokenizer, None
    classes = {name: build_class(escape, regex) for name, escape in {"L": r"\p{L}", "N": r"\p{N}", "s": r"\s"}.items()}
    pattern = re.sub(r"\{([LNs])\}", lambda match: classes[match[1]], _PATTERN)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if prefix_space:
        tokenizer.normalizer = normalizers.Prepend(" ")
    return tokenizer, _SPACE if prefix_space else None


def convert_tokens(dict_file: Path, kind: str, tokens: list[str], special: list[str]) -> list[str]:
    """Converts the tokens of `X.dict` to ParlAI's, in the order of their ids, perhaps repeated."""
    if kind == "gpt2":
        return [*tokens, *map(_decode_token, tokens)]  # mostly the same
    vocabulary = read_numbers(f"{dict_file}-vocab.json", kind="a vocabulary")
    if kind == "bytelevelbpe":
        return [*tokens, *sorted(vocabulary, key=vocabulary.__getitem__)]
    return [*special, *map(_decode_signs, vocabulary), *filter(_ADDED.fullmatch, tokens)]  # ignores the other tokens


def _decode_token(token: str) -> str:
    return token.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")  # which ParlAI reads as one character


def _check_whole(token: str, index: int) -> str:
    return token if token == _decode_token(token) else f"__read_as_{index}__"


def _decode_signs(signs: str) -> str:
    return "".join(chr(byte) if 32 <= byte <= 127 else f"\\{hex(byte).lstrip('0')}" for byte in signs.encode())


def _encode_signs(token: str, index: int) -> str:
    """The byte-level token for ParlAI's notation."""

    def decode_match(match: re.Match[str]) -> str:
        try:
            return bytes.fromhex(match[0].replace("\\x", "")).decode()
        except UnicodeDecodeError:
            return match[0]

    return _ESCAPED.sub(decode_match, _check_whole(token, index))


def _derive_merges(tokens: Iterable[str]) -> list[Merge]:
    """The merges of a vocabulary, whose tokens are in the order in which they were trained.

    Earlier merges leave a token in two pieces, which the token's merge joins.
    """
    ranks: dict[Merge, int] = {}
    for token in tokens:
        if len(token) > 1 and not _ADDED.fullmatch(token):
            pieces = list(token)
            while len(pieces) > 2:
                rank, i = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(pieces)))
                if rank == len(ranks):
                    break
                pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
            if len(pieces) == 2:
                ranks.setdefault((pieces[0], pieces[1]), len(ranks))
    return list(ranks)
