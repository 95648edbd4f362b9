"""Converts XLM's encoders to backbones, without XLM's code: the paper's own encoders were pre-trained with XLM.

XLM's encoder is a post-layer-norm BERT. It also sets the outputs at padding to zero, but no token attends to them, so
the outputs of tokens equal BERT's. It becomes a `BertModel`, not an `XLMModel`, for fused attention and freezing of
layers and embeddings. XLM's language embeddings, which are added to each token, become BERT's segment embeddings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.bpe import merge_tokenizer, read_lines, read_merges
from polyencoder.importing.folder import save_backbone
from polyencoder.importing.names import POSITIONS, SEGMENTS, WORDS, config_fields, names_of, rename, with_unknown_rows
from polyencoder.importing.pickles import option, plain, read_checkpoint, tensors

# The first ids of each dictionary. A sentence of XLM is between two </s>.
_SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10)))
_PAD, _UNKNOWN = 2, 3
_ROLES = {
    "bos_token": "<s>",
    "cls_token": "</s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<special1>",
}

_LANGUAGES = "lang_embeddings.weight"
_NAMES = {
    "embeddings.weight": WORDS,
    "position_embeddings.weight": POSITIONS,
    "layer_norm_emb.*": "embeddings.LayerNorm.*",
    "attentions.{}.q_lin.*": "encoder.layer.{}.attention.self.query.*",
    "attentions.{}.k_lin.*": "encoder.layer.{}.attention.self.key.*",
    "attentions.{}.v_lin.*": "encoder.layer.{}.attention.self.value.*",
    "attentions.{}.out_lin.*": "encoder.layer.{}.attention.output.dense.*",
    "layer_norm1.{}.*": "encoder.layer.{}.attention.output.LayerNorm.*",
    "ffns.{}.lin1.*": "encoder.layer.{}.intermediate.dense.*",
    "ffns.{}.lin2.*": "encoder.layer.{}.output.dense.*",
    "layer_norm2.{}.*": "encoder.layer.{}.output.LayerNorm.*",
}

# Approximates the Moses tokenization of XLM's English texts: runs of dots, 's and 't with their apostrophe, words with
# hyphens, numbers with commas, and any other character alone.
_MOSES = r"\.{2,}|'\p{L}+|[\p{L}\p{M}\p{N}]+(?:-[\p{L}\p{M}\p{N}]+|(?<=\p{N})[.,]\p{N}+)*|\S"


def import_xlm(
    checkpoint: str | os.PathLike[str],
    *,
    codes: str | os.PathLike[str],
    out: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | None = None,
    languages: Sequence[str] = (),
    lower_case: bool = True,
    tokenized: bool = False,
) -> None:
    """Converts an encoder of XLM to the folder of a `BertModel`, a backbone.

    Outputs are unchanged; so are token ids, for text that is split into words as XLM's was. The layer for masked words
    is dropped: a ranker does not use it.

    Args:
        checkpoint: the `.pth` file. No code in it is run.
        codes: fastBPE's merges.
        vocabulary: fastBPE's vocabulary, `token count` lines, for a checkpoint without a dictionary of its own.
        languages: the languages whose embeddings become those of the two segments: one for both, or two.
        lower_case: whether text is lower-cased and stripped of accents, as for XLM's English models.
        tokenized: whether text is tokenized already, with spaces between words, as XLM's is. Otherwise it is split
            approximately like Moses does for English.

    Raises:
        CheckpointError: a file is missing, damaged, unsafe to read, of another kind of model, or does not belong to
            the others; or a tensor is missing or left over.
        ConfigError: `languages` or `vocabulary` is missing or superfluous, or a language is unknown.
    """
    origin = os.fspath(checkpoint)
    states = read_checkpoint(checkpoint)
    options = plain(states.get("params"))
    state = tensors(states, "model", "encoder")
    if not isinstance(options, dict) or not state:
        raise CheckpointError(f"{origin}: not a checkpoint of XLM (it has no `model` or `encoder` with `params`)")
    weights = _weights(state, options, languages=languages, origin=origin)

    words = _dictionary(states, vocabulary, origin=origin)
    if len(words) != len(weights[WORDS]):
        raise CheckpointError(
            f"{vocabulary or origin}: its dictionary has {len(words)} words with the special ones, but {origin} embeds "
            f"{len(weights[WORDS])}; give the vocabulary that it was trained with"
        )
    tokenizer = _tokenizer(words, codes=codes, lower_case=lower_case, tokenized=tokenized, origin=origin)
    weights[WORDS] = with_unknown_rows(weights[WORDS], unknown=_UNKNOWN, size=tokenizer.get_vocab_size())

    save_backbone(
        out,
        config=_config(weights, options, origin=origin),
        weights=weights,
        tokenizer=tokenizer,
        special_tokens=_ROLES,
        origin=origin,
    )


def _weights(
    state: Mapping[str, Tensor], options: Mapping[str, Any], *, languages: Sequence[str], origin: str
) -> dict[str, Tensor]:
    """The tensors of a `BertModel`."""
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}  # of several GPUs
    names = names_of(_NAMES, n_layers=option(options, "n_layers", int, origin=origin))
    segments = _segments(state.pop(_LANGUAGES, None), options, languages=languages, origin=origin)
    weights = rename(state, names, left_out=("pred_layer.",), origin=origin)
    # two rows of zeros where there are no languages, so that a cross-encoder can start from this encoder
    return weights | {SEGMENTS: torch.zeros(2, weights[WORDS].size(1)) if segments is None else segments}


def _segments(
    embeddings: Tensor | None, options: Mapping[str, Any], *, languages: Sequence[str], origin: str
) -> Tensor | None:
    """The embeddings of the chosen languages, [2, dim]; None for a model without."""
    if embeddings is None:
        if languages:
            raise ConfigError(f"languages: {origin} has no language embeddings; leave them out")
        return None
    known = option(options, "lang2id", dict, origin=origin)
    languages = [languages] if isinstance(languages, str) else list(languages)
    if not 1 <= len(languages) <= 2 or not set(languages) <= set(known):
        raise ConfigError(
            f"languages: {languages} given, but {origin} has embeddings of {', '.join(map(str, known))}; give one of "
            "these, for both segments, or two"
        )
    try:
        rows = torch.stack([embeddings[known[language]] for language in languages]).float()
    except (IndexError, TypeError):
        raise CheckpointError(f"{origin}: `lang2id` does not fit its {len(embeddings)} language embeddings") from None
    return rows.expand(2, -1)


def _config(weights: Mapping[str, Tensor], options: Mapping[str, Any], *, origin: str) -> BertConfig:
    return BertConfig(
        **config_fields(weights, options, layers="n_layers", heads="n_heads", origin=origin),
        hidden_act="gelu" if option(options, "gelu_activation", bool, origin=origin) else "relu",
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        pad_token_id=_PAD,
    )


def _dictionary(states: Mapping[str, Any], vocabulary: str | os.PathLike[str] | None, *, origin: str) -> dict[str, int]:
    """Word, with fastBPE's `@@` where another piece follows -> id: the checkpoint's own, or a vocabulary file's."""
    own = states.get("dico_word2id")
    if (own is None) == (vocabulary is None):
        raise ConfigError(
            f"vocabulary: {origin} has {'no dictionary: give' if own is None else 'its own dictionary: leave out'} "
            "fastBPE's vocabulary file"
        )
    words: Any = own if vocabulary is None else _read_vocabulary(vocabulary)
    numbers: list[Any] = list(words.values()) if isinstance(words, dict) else [None]
    if not all(isinstance(number, int) for number in numbers) or sorted(numbers) != list(range(len(words))):
        raise CheckpointError(f"{origin}: `dico_word2id` does not number the words from 0")
    words = dict(sorted(words.items(), key=lambda item: item[1]))
    if tuple(words)[: len(_SPECIAL)] != _SPECIAL:
        raise CheckpointError(f"{origin}: its dictionary does not begin with XLM's tokens {', '.join(_SPECIAL)}")
    return words


def _read_vocabulary(path: str | os.PathLike[str]) -> dict[str, int]:
    words = {word: i for i, word in enumerate(_SPECIAL)}
    for line in read_lines(path):
        fields = line.split()
        # like XLM, which silently skips lines that are not a new word with its count
        if len(fields) == 2 and fields[1].isdigit() and fields[0] not in words and "\u2028" not in line:
            words[fields[0]] = len(words)
    return words


def _tokenizer(
    words: Mapping[str, int], *, codes: str | os.PathLike[str], lower_case: bool, tokenized: bool, origin: str
) -> Tokenizer:
    """fastBPE as a tokenizer. Its pieces end with `@@` unless they end a word; ours end with `</w>` if they do."""
    tokenizer = merge_tokenizer(words, read_merges(codes), special=_SPECIAL, origin=origin)
    if lower_case:
        steps = [normalizers.Lowercase(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
        tokenizer.normalizer = normalizers.Sequence(steps)
    split = pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = split if tokenized else pre_tokenizers.Split(Regex(_MOSES), "removed", invert=True)
    end = "</s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{end}:0 $A:0 {end}:0", pair=f"{end}:0 $A:0 {end}:0 $B:1 {end}:1", special_tokens=[(end, words[end])]
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer
