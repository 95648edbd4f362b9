"""The model and the text of a new ranker: around a pre-trained encoder, another ranker's encoder, or a vocabulary."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling import RankerModel, build_model, fitting
from polyencoder.modeling.convert.config import ConvertConfig, convert_ranker, convert_text
from polyencoder.modeling.encoder_config import backbone_config
from polyencoder.modeling.loading import load_pretrained, load_tokenizer
from polyencoder.modeling.pretrained_heads import start_from_heads
from polyencoder.modeling.sentence_encoder import sentence_vectors
from polyencoder.modeling.transfer import inherited_fields, transfer_weights
from polyencoder.text import (
    TextEncoder,
    TurnSeparator,
    own_separator,
    read_subwords,
    separate_turns,
    turn_separator,
)

__all__ = ["Parts", "around_encoder", "around_ranker", "over_vocabulary"]

_log = logging.getLogger(__name__)

Parts = tuple[RankerModel, TextEncoder]


def around_encoder(
    name: str | os.PathLike[str],
    architecture: Architecture,
    *,
    text: dict[str, Any],
    separator: TurnSeparator | None,
    config: dict[str, Any],
) -> Parts:
    """A ranker around the encoder of this folder or hub id; see `Ranker.from_backbone`."""
    backbone = load_pretrained(name)
    tokenizer, special = load_tokenizer(name)
    special = separate_turns(tokenizer, special, separator or own_separator(tokenizer))
    backbone.resize(tokenizer.get_vocab_size())
    layout = TextConfig(**(special | text))
    if vectors := sentence_vectors(name):
        own = ("output_scaling",) if config.get("normalize") is False else ()  # its own is that of a cosine
        if vectors.reduction is None and "reduction" not in config:
            _log.warning("%s: its pooling, %s, is no reduction: taking the first output", name, vectors.pooling_name)
        if vectors.left_out:
            modules = ", ".join(vectors.left_out)
            _log.warning("%s: its %s is left out: vectors are the encoder's own, not those it had", name, modules)
        config = vectors.fields(architecture, given=(*config, *own)) | config
    encoder = backbone_config(backbone.model)
    layout = fitting(layout, encoder, architecture, given=text)
    model = build_model(RankerConfig(architecture=architecture, backbone=encoder, text=layout, **config), backbone)
    start_from_heads(model, name)
    return model.eval(), TextEncoder(tokenizer, layout)


def around_ranker(
    other: Parts,
    architecture: Architecture,
    *,
    origin: str,
    text: dict[str, Any],
    separator: TurnSeparator | None,
    config: dict[str, Any],
) -> Parts:
    """A new ranker that begins with another's encoders, its tokenizer, and what else of it has a place.

    `config` and `text` are fields that were given; others are the other ranker's (`inherited_fields`) or have their
    defaults. `origin` names the other ranker in errors. Raises ConfigError where one of the two is a ConveRT, whose
    parts no other ranker has, and for a `separator` that is not the other's, whose tokenizer is kept.
    """
    model, words = other
    stored, own = model.config, turn_separator(words.config)
    if "convert" in (stored.architecture, architecture):
        raise ConfigError(
            f"{origin} is of the architecture {stored.architecture}: no {architecture} model can start from it"
        )
    if separator not in (None, own):
        raise ConfigError(f"{origin} has the turn_separator {own!r}, which cannot be changed: leave it out")
    layout = fitting(replace(words.config, **text), stored.backbone, architecture, given=text)
    fields = inherited_fields(stored, architecture, normalize=config.get("normalize")) | config
    new = build_model(RankerConfig(architecture=architecture, backbone=stored.backbone, text=layout, **fields))
    transfer_weights(new, model.state_dict(), origin=origin)
    return new.eval(), TextEncoder(words.tokenizer, layout)


def over_vocabulary(
    vocabulary: str | os.PathLike[str], *, extra_contexts: int, text: dict[str, Any], sizes: dict[str, Any]
) -> Parts:
    """A ConveRT with random weights; see `Ranker.from_vocabulary`."""
    tokenizer = read_subwords(vocabulary)
    config = ConvertConfig(
        **{"multi_context": extra_contexts != 0, **sizes}, vocab_size=tokenizer.get_vocab_size(False)
    )
    layout = replace(convert_text(extra_contexts=extra_contexts), **text)
    return build_model(convert_ranker(config, layout)), TextEncoder(tokenizer, layout)
