"""Converts ParlAI's dictionaries to fast tokenizers that give the same ids.

This takes the same word characters (Python's `\\w`), the same lower-casing, the merges of subword-nmt, and the same
treatment of line ends. ParlAI's `bpe` dictionaries write `piece@@` for a piece that another one follows; here it is
`piece`, and the last piece of a word is `piece</w>`. In `space` dictionaries a word may be empty, which fast tokenizers
do not support; here each word begins with a marker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.bpe import (
    END_OF_WORD,
    Merge,
    build_merge_tokenizer,
    convert_symbol,
    read_merges,
    read_numbers,
)
from polyencoder.importing.byte_level import BYTE_LEVEL, build_byte_level, convert_tokens
from polyencoder.importing.patterns import build_lower_case as to_lower_case
from polyencoder.importing.patterns import build_white_space_pattern, keep_matches
from polyencoder.text.vocabulary import NEWLINES

WORD_START = "\u2581"
_LINE_END = "__newln__"

# The options for special tokens, in the order of their ids, with ParlAI's defaults
_SPECIAL = {
    "dict_nulltoken": "__null__",
    "dict_starttoken": "__start__",
    "dict_endtoken": "__end__",
    "dict_unktoken": "__unk__",
}
_OLD_SPECIAL = {"__NULL__", "__START__", "__END__", "__UNK__"}  # old dictionaries; ParlAI reads them as the ones above

# For each `dict_tokenizer` of whole words, the pattern of a token, as a Python regular expression
_WORD_PATTERNS = {"re": r"[\w]+|[^\w\s]|\n", "split": r"[.,;:!?]|[^.,;:!?\s]+"}

# The layout of the papers' files
VOCABULARY, MERGES = "vocab.json", "merges.txt"
CODES = ".codecs"  # the merges beside a `.dict` file of ParlAI

KINDS = ("bpe", *_WORD_PATTERNS, "space", *BYTE_LEVEL)
_WHY_NOT = {"nltk": ": it splits sentences with a model of NLTK (punkt), which no tokenizer.json can hold"}

# Options of a dictionary that change its tokens: option -> the values that mean "not used"
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "dict_max_ngram_size": (-1, 0, 1, None),
    "special_tok_lst": (None, ""),
    "history_reversed": (False, None),
    "history_add_global_end_token": (None,),
}


def read_parlai_dictionary(
    dict_file: str | os.PathLike[str], opt: Mapping[str, Any]
) -> tuple[Tokenizer, dict[str, Any]]:
    """Reads a ParlAI dictionary: its tokenizer, and the fields of `TextConfig` that go with it.

    Tokens keep their ids. In a `bpe` dictionary the merges can make pieces that the dictionary lacks, which ParlAI
    maps to the unknown token. Here they get ids after the last one: a model needs as many more embeddings, equal to
    that of the unknown token.

    Args:
        dict_file: the file `X.dict`. A `bpe` dictionary has its merges beside it, in `X.dict.codecs`, a byte-level one
            its vocabulary and merges, in `X.dict-vocab.json` and `X.dict-merges.txt`.
        opt: the options that the model was trained with, those of `X.opt`.

    Raises:
        ConfigError: the dictionary is of a kind that cannot be reproduced exactly.
        CheckpointError: if a file is missing or damaged.
    """
    kind = opt.get("dict_tokenizer", "re")
    if kind not in KINDS:
        raise ConfigError(
            f"{dict_file}: a dictionary of dict_tokenizer {kind}{_WHY_NOT.get(kind, '')}; "
            f"those of {', '.join(KINDS)} can be read"
        )
    for name, unused in _UNSUPPORTED.items():
        if opt.get(name) not in unused:
            raise ConfigError(f"{dict_file}: {name} {opt[name]} is not supported")

    path, special = Path(dict_file), _list_special_tokens(opt)
    tokens = _read_tokens(path, opt)
    names, empty = {token: token for token in special}, None
    if kind == "bpe":
        tokenizer, names = _build_subwords(path, tokens, special, merges=read_merges(f"{path}{CODES}", versioned=True))
    elif kind == "space":
        tokenizer, names = _build_pieces(tokens, special), {token: WORD_START + token for token in special}
        empty = WORD_START if "" in tokens else names[special[-1]]
    elif kind in BYTE_LEVEL:
        tokenizer, empty = build_byte_level(path, kind, tokens, special, prefix_space=opt.get("bpe_add_prefix_space"))
    else:
        tokenizer = _build_words(tokens, special[-1], pattern=_WORD_PATTERNS[kind])
    lower = to_lower_case() if opt.get("dict_lower") else []
    tokenizer.normalizer = normalizers.Sequence([*lower, *([tokenizer.normalizer] if tokenizer.normalizer else [])])
    delimiter = opt.get("delimiter", "\n")
    null, start, end, _ = special
    return tokenizer, {
        "pad_token": names[null],
        "start_token": names[start],
        "end_token": names[end],
        # ParlAI tokenizes it like any text: with the space it differs from the special token
        "separator": delimiter if tokenizer.token_to_id(delimiter) is None else f" {delimiter}",
        "truncation": "tokens",
        "empty_token": empty,
    }


def count_parlai_tokens(dict_file: str | os.PathLike[str], opt: Mapping[str, Any]) -> int:
    """The number of tokens in a ParlAI dictionary, equal to the embeddings of its models."""
    return len(_read_tokens(Path(dict_file), opt))


def guess_tokens(word: str) -> set[str]:
    """The possible tokens of a word in a dictionary that was read here."""
    return {word, word + END_OF_WORD, WORD_START + word}


def _build_words(tokens: list[str], unknown: str, *, pattern: str) -> Tokenizer:
    """Builds a tokenizer of whole words: each match of the pattern is a token."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=unknown))
    tokenizer.pre_tokenizer = keep_matches(pattern)
    return tokenizer


def _build_pieces(tokens: list[str], special: list[str]) -> Tokenizer:
    """Splits at each space, also into empty words; each token begins with the marker."""
    vocabulary = {WORD_START + token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=WORD_START + special[-1]))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(rf"\A{build_white_space_pattern()}+|{build_white_space_pattern()}+\z"), ""),
            normalizers.Prepend(WORD_START),
            normalizers.Replace(" ", f" {WORD_START}"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer.decoder = decoders.Metaspace(WORD_START, prepend_scheme="always")
    return tokenizer


def is_merge_vocabulary(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is for `read_merge_vocabulary`, and not a tokenizer that transformers reads."""
    names = {path.name for path in Path(folder).iterdir()} if Path(folder).is_dir() else set()
    return {VOCABULARY, MERGES} <= names and not names & {"tokenizer.json", "tokenizer_config.json", "config.json"}


def read_merge_vocabulary(
    source: str | os.PathLike[str], *, lower_case: bool = True
) -> tuple[Tokenizer, dict[str, str]]:
    """Reads the dictionary of the paper's encoders, for a new model: its tokenizer and fields of `TextConfig`.

    Tokens keep their numbers. The padding tokens for fp16, at the end, are dropped; `__newln__` becomes `[NEWLINE]`.
    source: a folder with `vocab.json`, `piece@@` where another follows, and subword-nmt's `merges.txt`; or ParlAI's
    file `X.dict` with `X.dict.codecs`. CheckpointError for a file that is missing or damaged.
    """
    path = Path(source)
    if path.is_dir():
        path, merges = path / VOCABULARY, path / MERGES
        tokens = _read_numbered(path)
    else:
        merges = Path(f"{path}{CODES}")
        tokens = _read_tokens(path, {"dict_tokenizer": "bpe"})
    while tokens[-1].lower().startswith("__fp16_pad_"):
        tokens.pop()
    newline = NEWLINES[0]
    tokens = [newline if token == _LINE_END else token for token in tokens]
    special = [newline, *_SPECIAL.values()]  # the last one is the unknown token
    tokenizer, names = _build_subwords(path, tokens, special, merges=read_merges(merges, versioned=True))
    tokenizer.normalizer = normalizers.Sequence(to_lower_case() if lower_case else [])
    tokenizer.add_special_tokens([name for name in names.values() if tokenizer.token_to_id(name) is not None])
    return tokenizer, merge_fields(tokenizer) or {}


def merge_fields(tokenizer: object) -> dict[str, str] | None:
    """The fields of `TextConfig` for a tokenizer that `read_merge_vocabulary` made; None for another."""
    if not isinstance(tokenizer, Tokenizer):
        return None
    tokens = [tokenizer.id_to_token(number) or "" for number in range(len(_SPECIAL))]
    if [token.removesuffix(END_OF_WORD) for token in tokens] != list(_SPECIAL.values()):
        return None
    null, start, end, _ = tokens
    newline = NEWLINES[0]
    separator = end if tokenizer.token_to_id(newline) is None else newline
    return {"pad_token": null, "start_token": start, "end_token": end, "separator": separator}


def _read_numbered(path: Path) -> list[str]:
    """The tokens of a `vocab.json`, in the order of their numbers."""
    numbers = read_numbers(path, kind="the paper's vocabulary")
    tokens = sorted(numbers, key=numbers.__getitem__)
    fits = [numbers[token] for token in tokens] == list(range(len(tokens)))
    special = list(_SPECIAL.values())
    if not fits or tokens[: len(special)] != special:
        raise CheckpointError(f"{path}: its tokens must be numbered from 0, beginning with {', '.join(special)}")
    return tokens


def _build_subwords(
    dict_file: Path, tokens: list[str], special: list[str], *, merges: list[Merge]
) -> tuple[Tokenizer, dict[str, str]]:
    """Returns the tokenizer of subword-nmt's merges, and the names of the special tokens in it."""
    pieces = {piece for left, right in merges for piece in (left, right, left + right)}
    # a special token keeps its name unless a word or piece of texts has it too
    names = {token: convert_symbol(token) if pieces & {token, token + END_OF_WORD} else token for token in special}
    unchanged = [token for token, name in names.items() if name == token]
    tokenizer = build_merge_tokenizer(tokens, merges, special=unchanged, unknown=special[-1], origin=dict_file)
    tokenizer.normalizer = normalizers.Replace("\n", f" {_LINE_END} ")
    tokenizer.pre_tokenizer = keep_matches(r"[\w]+|[^\w\s]")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_LINE_END, "\n"), tokenizer.decoder])
    return tokenizer, names


def _list_special_tokens(opt: Mapping[str, Any]) -> list[str]:
    return [opt.get(name) or default for name, default in _SPECIAL.items()]


def _read_tokens(path: Path, opt: Mapping[str, Any]) -> list[str]:
    """The tokens of a `.dict` file, in the order of their ids, including those that ParlAI adds when reading."""
    special = _list_special_tokens(opt)
    tokens = dict.fromkeys(special)
    try:
        with path.open(encoding="utf-8", errors="ignore") as lines:
            for line in lines:
                token = line.rstrip("\n\r").split("\t")[0]
                token = token.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")
                is_old = token in _OLD_SPECIAL and special[0] == special[0].lower()
                tokens[token.lower() if is_old else token] = None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); it is the model's dictionary") from None
    kind = opt.get("dict_tokenizer", "re")
    if kind in BYTE_LEVEL:
        tokens = dict.fromkeys(convert_tokens(path, kind, list(tokens), special))
    if opt.get("person_tokens"):
        tokens |= dict.fromkeys(["__p1__", "__p2__"])
    if opt.get("fp16") or opt.get("force_fp16_tokens"):  # to a multiple of eight
        tokens |= dict.fromkeys(f"__FP16_PAD_{i}__" for i in range(-len(tokens) % 8))
    return list(tokens)
