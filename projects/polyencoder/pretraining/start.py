"""Builds the initial model of pre-training, a new encoder or an existing one, and writes its folder."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer

from polyencoder.checkpoint import publishing_folder
from polyencoder.checks import checked_device
from polyencoder.config import Reduction, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.folder import save_backbone
from polyencoder.importing.parlai_dictionary import is_merge_vocabulary, read_merge_vocabulary
from polyencoder.modeling.encoder_config import max_length, scratch_config
from polyencoder.modeling.loading import build_backbone, load_pretrained, load_tokenizer
from polyencoder.modeling.pretrained_heads import HEADS, read_heads
from polyencoder.modeling.sentence_encoder import read_prompts, sentence_encoder
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.masking import Masking
from polyencoder.settings.pretrain import EncoderSettings, PretrainingSettings
from polyencoder.storage.files import reporting_write_errors
from polyencoder.text import TextEncoder, choose_separator, separate_turns

Special = dict[str, Any]
"""The `TextConfig` fields of a tokenizer."""

POSITIONS = 512
MASKS = ("[MASK]", "<mask>")
UNKNOWN = ("[UNK]", "<unk>", "__unk__", "__unk__</w>")  # the last two of the papers' dictionary


@dataclass(frozen=True)
class Pretrained:
    """A pre-training model with its tokenizer, on a device (`polyencoder.encoding.protocol.Learner`).

    longest: the most tokens of a sequence. masking: chooses words of its vocabulary.
    """

    model: PretrainingModel
    text: TextEncoder
    device: torch.device
    longest: int
    masking: Masking

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Saves encoder and heads, for `AutoModel` and `AutoTokenizer`. CheckpointError: it cannot be written."""
        target, tokenizer, special = Path(folder), self.text.tokenizer, self.text.config
        assert isinstance(tokenizer, Tokenizer)
        roles = {"pad_token": special.pad_token, "cls_token": special.start_token, "sep_token": special.end_token}
        roles["mask_token"] = str(tokenizer.id_to_token(self.masking.mask_id))
        if (unknown := _known(tokenizer, UNKNOWN)) is not None:
            roles["unk_token"] = unknown
        encoder = self.model.encoder.model
        heads = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.model.state_dict().items()
            if not name.startswith("encoder.")
        }
        with reporting_write_errors(target, CheckpointError), publishing_folder(target) as staging:
            safetensors.torch.save_file(heads, staging / HEADS, metadata={"format": "pt"})
            save_backbone(
                staging,
                config=type(encoder.config)(**encoder.config.to_dict()),
                weights={name: tensor.cpu() for name, tensor in encoder.state_dict().items()},
                tokenizer=tokenizer,
                special_tokens=roles,
                origin=str(target),
            )


def starting_model(settings: PretrainingSettings) -> Pretrained:
    """Builds the encoder with its heads, new or the backbone's. ConfigError: missing, or contradicts the settings."""
    sizes, objective = settings.encoder, settings.objective
    tokenizer, special = starting_tokenizer(vocabulary=sizes.vocabulary, backbone=sizes.backbone)
    if sizes.backbone:
        encoder = load_pretrained(sizes.backbone, dropout=sizes.dropout, attention_dropout=sizes.attention_dropout)
        if not encoder.has_layers:
            raise ConfigError(f"backbone {sizes.backbone}: has no layers to pre-train", argument="backbone")
        encoder.resize(tokenizer.get_vocab_size())
    else:
        pad_id = _id(tokenizer, special["pad_token"])
        encoder = build_backbone(new_encoder_config(sizes, vocabulary=tokenizer.get_vocab_size(), pad_id=pad_id))
    encoder_max = max_length(encoder.model.config.to_dict())
    longest = longest_sequence(sizes.n_positions, encoder_max, origin=sizes.backbone)
    truncate = longest if sizes.text_truncate is None else min(sizes.text_truncate, longest)
    text = TextEncoder(
        tokenizer,
        TextConfig(**special, text_truncate=truncate, label_truncate=longest, history_size=sizes.history_size),
    )
    model = PretrainingModel(encoder, next=objective.next, **text_vectors(objective.reduction, sizes.backbone))
    if sizes.backbone:
        take_heads(model, sizes.backbone)
    device = checked_device(settings.evaluation.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Pretrained(model.to(device), text, device, longest, masking_of(text, objective.mask_probability))


def starting_tokenizer(*, vocabulary: str | None = None, backbone: str | None = None) -> tuple[Tokenizer, Special]:
    """Loads a tokenizer, with a mask token, and its `TextConfig` fields. ConfigError: neither source is given."""
    try:
        if vocabulary and is_merge_vocabulary(vocabulary):
            tokenizer, special_tokens = read_merge_vocabulary(vocabulary)
        else:
            tokenizer, special_tokens = load_tokenizer(backbone or vocabulary or "")
    except ConfigError as error:
        if backbone:
            raise
        raise ConfigError(
            f"vocabulary {vocabulary}: no folder of a tokenizer ({error}); train one with `polyencoder vocab`",
            argument="vocabulary",
        ) from None
    special: Special = separate_turns(tokenizer, special_tokens, choose_separator(tokenizer))
    add_mask(tokenizer)
    return tokenizer, special


def add_mask(tokenizer: Tokenizer) -> None:
    """Adds a mask token to a tokenizer without one."""
    if _known(tokenizer, MASKS) is None:
        tokenizer.add_special_tokens([MASKS[0]])


def masking_of(text: TextEncoder, probability: float) -> Masking:
    """Builds the masking for a tokenizer with a mask token."""
    tokenizer, config = text.tokenizer, text.config
    assert isinstance(tokenizer, Tokenizer)
    mask = _known(tokenizer, MASKS)
    assert mask is not None
    special = {config.pad_token, config.start_token, config.end_token, config.separator, mask}
    ids = [tokenizer.token_to_id(token) for token in special if token]
    return Masking(
        _id(tokenizer, mask), [one for one in ids if one is not None], tokenizer.get_vocab_size(), probability
    )


def new_encoder_config(settings: EncoderSettings, *, vocabulary: int, pad_id: int) -> dict[str, Any]:
    """The configuration of a new encoder over a vocabulary of this size."""
    return scratch_config(
        vocabulary_size=vocabulary,
        dim=settings.embedding_size,
        n_layers=settings.n_layers,
        n_heads=settings.n_heads,
        ffn_dim=settings.ffn_size,
        n_positions=settings.n_positions or POSITIONS,
        dropout=settings.dropout,
        attention_dropout=settings.attention_dropout,
        pad_id=pad_id,
    )


def longest_sequence(n_positions: int | None, encoder_max: int | None, *, origin: str | None) -> int:
    """The longest sequence: `n_positions`, else `encoder_max`, at most 512. ConfigError: more than that of `origin`."""
    if n_positions is not None and encoder_max is not None and n_positions > encoder_max:
        raise ConfigError(
            f"n_positions is {n_positions}, more than the {encoder_max} of {origin}", argument="n_positions"
        )
    return n_positions or min(encoder_max or POSITIONS, POSITIONS)


def take_heads(model: PretrainingModel, folder: str) -> None:
    """Loads the heads in an encoder's folder, if any. CheckpointError: they belong to another encoder."""
    heads = read_heads(folder)
    weights: dict[str, Any] = {k: v for k, v in model.state_dict().items() if not k.startswith("encoder.")}
    common = weights.keys() & heads.keys()  # either may have none for next utterances
    if heads and (not common or any(weights[name].shape != heads[name].shape for name in common)):
        raise CheckpointError(f"{Path(folder) / HEADS}: not the heads of this encoder")
    model.load_state_dict({name: heads[name] for name in common}, strict=False)


def text_vectors(reduction: Reduction | None, backbone: str | None) -> dict[str, Any]:
    """Pooling and normalization, given or a sentence encoder's. ConfigError: it has prompts or other modules."""
    pooling = {} if reduction is None else {"reduction": reduction}
    sentence = sentence_encoder(backbone) if backbone else None
    if backbone:
        check_without(sentence and sentence.dense, read_prompts(backbone).values(), origin=backbone)
    fields = (
        {name: value for name, value in sentence.fields.items() if name in ("reduction", "normalize")}
        if sentence
        else {}
    )
    return {**fields, **pooling}


def check_without(modules: Any, prompts: Collection[str], *, origin: str) -> None:
    """Raises ConfigError for what pre-training would drop: modules behind an encoder's pooling, and prompts."""
    for dropped, what, file in (
        (modules, "Dense or other modules behind its pooling", "modules.json"),
        (any(prompts), "prompts", "config_sentence_transformers.json"),
    ):
        if dropped:
            raise ConfigError(
                f"{origin} has {what}, and is pre-trained without: give the transformer alone as `backbone`, a copy of "
                f"a sentence encoder's folder without {file}",
                argument="backbone",
            )


def _known(tokenizer: Tokenizer, tokens: tuple[str, ...]) -> str | None:
    return next((token for token in tokens if tokenizer.token_to_id(token) is not None), None)


def _id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return int(token_id)
