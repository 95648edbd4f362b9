"""What a pre-training begins with: a new encoder over a vocabulary, or one that goes on; and where it is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor

from polyencoder.checks import checked_device
from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.files import explaining, replacing
from polyencoder.importing.folder import save_backbone
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import max_length, scratch_config
from polyencoder.modeling.loading import build_backbone, load_pretrained, load_tokenizer
from polyencoder.modeling.pretrained_heads import HEADS, read_heads
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.masking import Masking
from polyencoder.pretraining.settings import PretrainingSettings
from polyencoder.text import TextEncoder, own_separator, separate_turns

__all__ = ["Pretrained", "starting_model"]

POSITIONS = 512
MASKS = ("[MASK]", "<mask>", "<special1>")  # the last is XLM's
UNKNOWN = ("[UNK]", "<unk>")


@dataclass(frozen=True)
class Pretrained:
    """A model that is pre-trained, with its tokenizer, on a device (`polyencoder.protocol.Learner`).

    longest: the most tokens of a sequence. masking: chooses words of its vocabulary.
    """

    model: PretrainingModel
    text: TextEncoder
    device: torch.device
    longest: int
    masking: Masking

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write an encoder that `AutoModel` and `AutoTokenizer` read, a backbone; and its heads beside it.

        Raises:
            CheckpointError: it cannot be written.
        """
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
        with explaining(target, CheckpointError), replacing(target / HEADS) as file:
            safetensors.torch.save_file(heads, file, metadata={"format": "pt"})
            save_backbone(
                target,
                config=type(encoder.config)(**encoder.config.to_dict()),
                weights={name: tensor.cpu() for name, tensor in encoder.state_dict().items()},
                tokenizer=tokenizer,
                special_tokens=roles,
                origin=str(target),
            )


def starting_model(settings: PretrainingSettings) -> Pretrained:
    """The encoder of the settings with its heads: new ones, or those that are in the backbone's folder.

    Raises:
        ConfigError: there is no such vocabulary or backbone, or it does not suit the settings.
    """
    name = settings.backbone or settings.vocabulary
    assert name is not None
    try:
        tokenizer, own = load_tokenizer(name)
    except ConfigError as error:
        if settings.backbone:
            raise
        raise ConfigError(
            f"vocabulary {name}: no folder of a tokenizer ({error}); learn one with `polyencoder vocab`",
            argument="vocabulary",
        ) from None
    special: dict[str, Any] = separate_turns(tokenizer, own, own_separator(tokenizer))
    mask = _known(tokenizer, MASKS)
    if mask is None:
        tokenizer.add_special_tokens([mask := MASKS[0]])
    if settings.backbone:
        encoder = load_pretrained(name, dropout=settings.dropout, attention_dropout=settings.attention_dropout)
        encoder.resize(tokenizer.get_vocab_size())
    else:
        encoder = _new_encoder(
            settings, vocabulary=tokenizer.get_vocab_size(), pad_id=_id(tokenizer, special["pad_token"])
        )
    longest = _longest(settings, encoder)
    truncate = min(settings.text_truncate or longest, longest)
    text = TextEncoder(
        tokenizer,
        TextConfig(**special, text_truncate=truncate, label_truncate=longest, history_size=settings.history_size),
    )
    model = PretrainingModel(encoder)
    if settings.backbone and (heads := read_heads(name)):
        _take(model, heads, origin=name)
    never = [_id(tokenizer, token) for token in {*special.values(), mask} if token]
    masking = Masking(_id(tokenizer, mask), never, tokenizer.get_vocab_size(), settings.mask_probability)
    device = checked_device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Pretrained(model.to(device), text, device, longest, masking)


def _new_encoder(settings: PretrainingSettings, *, vocabulary: int, pad_id: int) -> Backbone:
    return build_backbone(
        scratch_config(
            vocabulary_size=vocabulary,
            n_positions=settings.n_positions or POSITIONS,
            dropout=settings.dropout,
            attention_dropout=settings.attention_dropout,
            pad_id=pad_id,
            **settings.sizes,
        )
    )


def _longest(settings: PretrainingSettings, encoder: Backbone) -> int:
    own = max_length(encoder.model.config.to_dict())
    if settings.n_positions is not None and own is not None and settings.n_positions > own:
        raise ConfigError(
            f"n_positions is {settings.n_positions}, more than the {own} of {settings.backbone}", argument="n_positions"
        )
    return settings.n_positions or min(own or POSITIONS, POSITIONS)


def _take(model: PretrainingModel, heads: dict[str, Tensor], *, origin: str) -> None:
    own: dict[str, Any] = {k: v for k, v in model.state_dict().items() if not k.startswith("encoder.")}
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in heads.items()}:
        raise CheckpointError(f"{Path(origin) / HEADS}: not the heads of this encoder")
    model.load_state_dict(heads, strict=False)


def _known(tokenizer: Tokenizer, tokens: tuple[str, ...]) -> str | None:
    return next((token for token in tokens if tokenizer.token_to_id(token) is not None), None)


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return int(found)
