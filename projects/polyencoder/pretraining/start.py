"""Builds the initial model of pre-training, a new encoder or an existing one, and writes its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer

from polyencoder.checkpoint import publishing_folder
from polyencoder.checks import check_device
from polyencoder.config import Reduction, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.folder import save_backbone
from polyencoder.importing.parlai_dictionary import is_merge_vocabulary, read_merge_vocabulary
from polyencoder.modeling.encoder_config import build_scratch_config, get_max_length
from polyencoder.modeling.loading import build_backbone, load_pretrained, load_tokenizer
from polyencoder.modeling.pretrained_heads import HEADS, read_heads
from polyencoder.modeling.sentence_encoder import read_prompts, read_sentence_encoder
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.masking import Masking
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.storage.files import reporting_write_errors
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.vocabulary import choose_separator, separate_turns

Special = dict[str, Any]
"""The `TextConfig` fields of a tokenizer."""

POSITIONS = 512
MASKS = ("[MASK]", "<mask>")
UNKNOWN = ("[UNK]", "<unk>", "__unk__", "__unk__</w>")  # the last two are the papers' dictionary's


@dataclass(frozen=True)
class Pretrained:
    """A pre-training model with its tokenizer, on a device (`polyencoder.encoding.protocol.Learner`).

    longest: maximum tokens of a sequence. masking: chooses words of its vocabulary.
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
        if (unknown := _find_known(tokenizer, UNKNOWN)) is not None:
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


def build_starting_model(settings: PretrainingSettings) -> Pretrained:
    """Builds the encoder with its heads, new or the backbone's. ConfigError: missing, or contradicts the settings."""
    sizes, objective, backbone = settings.encoder, settings.objective, settings.encoder.backbone
    tokenizer, special = load_starting_tokenizer(vocabulary=sizes.vocabulary, backbone=backbone)
    if backbone:
        encoder = load_pretrained(backbone, dropout=sizes.dropout, attention_dropout=sizes.attention_dropout)
        if not encoder.has_layers:
            raise ConfigError(f"backbone {backbone}: has no layers to pre-train", argument="backbone")
        encoder.resize(tokenizer.get_vocab_size())
    else:
        config = build_scratch_config(
            vocabulary_size=tokenizer.get_vocab_size(),
            dim=sizes.embedding_size,
            n_layers=sizes.n_layers,
            n_heads=sizes.n_heads,
            ffn_dim=sizes.ffn_size,
            n_positions=sizes.n_positions or POSITIONS,
            dropout=sizes.dropout,
            attention_dropout=sizes.attention_dropout,
            pad_id=tokenizer.get_vocab()[special["pad_token"]],
        )
        encoder = build_backbone(config)
    limit = get_max_length(encoder.model.config.to_dict())
    longest = sizes.n_positions or min(limit or POSITIONS, POSITIONS)
    if limit is not None and longest > limit:
        raise ConfigError(f"n_positions is {longest}, more than the {limit} of {backbone}", argument="n_positions")
    truncate = longest if sizes.text_truncate is None else min(sizes.text_truncate, longest)
    text = TextEncoder(
        tokenizer,
        TextConfig(**special, text_truncate=truncate, label_truncate=longest, history_size=sizes.history_size),
    )
    model = PretrainingModel(encoder, next=objective.next, **choose_text_vectors(objective.reduction, backbone))
    if backbone:
        take_heads(model, backbone)
    roles = (text.config.pad_token, text.config.start_token, text.config.end_token, text.config.separator)
    ids = [tokenizer.token_to_id(token) for token in (_find_known(tokenizer, MASKS), *roles) if token]
    mask_id, *special_ids = [token_id for token_id in ids if token_id is not None]
    masking = Masking(mask_id, special_ids, tokenizer.get_vocab_size(), objective.mask_probability)
    device = check_device(settings.evaluation.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Pretrained(model.to(device), text, device, longest, masking)


def load_starting_tokenizer(*, vocabulary: str | None = None, backbone: str | None = None) -> tuple[Tokenizer, Special]:
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
    if _find_known(tokenizer, MASKS) is None:
        tokenizer.add_special_tokens([MASKS[0]])
    return tokenizer, special


def take_heads(model: PretrainingModel, folder: str) -> None:
    """Loads the heads in an encoder's folder, if any. CheckpointError: they belong to another encoder."""
    heads = read_heads(folder)
    weights: dict[str, Any] = {k: v for k, v in model.state_dict().items() if not k.startswith("encoder.")}
    common = weights.keys() & heads.keys()  # either may have none for next utterances
    if heads and (not common or any(weights[name].shape != heads[name].shape for name in common)):
        raise CheckpointError(f"{Path(folder) / HEADS}: not the heads of this encoder")
    model.load_state_dict({name: heads[name] for name in common}, strict=False)


def choose_text_vectors(reduction: Reduction | None, backbone: str | None) -> dict[str, Any]:
    """Pooling and normalization, given or a sentence encoder's.

    ConfigError: it has prompts or modules behind its pooling, which pre-training would drop.
    """
    pooling = {} if reduction is None else {"reduction": reduction}
    if not backbone:
        return pooling
    sentence = read_sentence_encoder(backbone)
    for dropped, parts, file in (
        (sentence and sentence.dense, "Dense or other modules behind its pooling", "modules.json"),
        (any(read_prompts(backbone).values()), "prompts", "config_sentence_transformers.json"),
    ):
        if dropped:
            raise ConfigError(
                f"{backbone} has {parts}, and is pre-trained without: give the transformer alone as `backbone`, a copy "
                f"of a sentence encoder's folder without {file}",
                argument="backbone",
            )
    fields = sentence.fields if sentence else {}
    return {name: fields[name] for name in ("reduction", "normalize") if name in fields} | pooling


def _find_known(tokenizer: Tokenizer, tokens: tuple[str, ...]) -> str | None:
    return next((token for token in tokens if tokenizer.token_to_id(token) is not None), None)
