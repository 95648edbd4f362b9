"""Builds models from a configuration, a pre-trained encoder, another ranker, or a vocabulary."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from polyencoder.config import Architecture, ConvertConfig, RankerConfig, TextConfig, TurnSeparator
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.modeling.encoder_config import get_backbone_config, get_max_length
from polyencoder.modeling.encoder_files import find_longest_input
from polyencoder.modeling.families import get_family
from polyencoder.modeling.pretrained_heads import start_from_heads
from polyencoder.modeling.reranker_head import read_pair_start
from polyencoder.modeling.sentence_encoder import (
    describe_left_out,
    read_config_fields,
    read_lengths,
    read_prompts,
    start_from_dense,
)
from polyencoder.modeling.transfer import build_residual_error, check_layout, select_inherited_fields, transfer_weights
from polyencoder.text.encoder import TextEncoder, read_subwords
from polyencoder.text.vocabulary import choose_separator, get_turn_separator, separate_turns

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone

_log = logging.getLogger(__name__)

Parts = tuple[RankerModel, TextEncoder]


class SkippingInit(TorchFunctionMode):
    """Skips torch.nn.init's draws, which take longer than reading the weights that replace them.

    It leaves out no draw of a tensor's own method: `trunc_normal_` repeats those until all numbers are in its limits.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(function, FunctionType) and function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs or {})


def build_model(config: RankerConfig, backbone: Backbone | None = None) -> RankerModel:
    """Builds the ranker of a configuration, around `backbone` or a random one. ConfigError: see `Family.check`."""
    spec = get_family(config.architecture)
    build: Any = spec.model  # whose arguments depend on the family
    spec.check(config)
    model: RankerModel
    if spec.has_backbone:
        from polyencoder.modeling.loading import build_backbone

        model = build(config, backbone or build_backbone(config.backbone))
    else:
        model = build(config)
    if config.base is not None:
        model.base = build_model(config.base).requires_grad_(False)
        model.inference_only = (model.base,)  # also where nothing calls `freeze`
    return model


def lay_out(
    text: TextEncoder,
    config: dict[str, Any],
    backbone: Mapping[str, Any],
    architecture: Architecture,
    *,
    explicit: Collection[str],
    encoder: str | os.PathLike[str] | None = None,
) -> None:
    """Shortens a new ranker's default text lengths to the backbone's maximum, and logs it; `explicit` ones stay.

    The fields `config` of a cross-encoder take over the pair layout of the reranker `encoder`: a context (the question)
    has at most a quarter of the tokens, a candidate (the passage) the rest. The pair layout of a ranker stays as it is.
    """
    reranker = encoder if config.get("dense") and not get_family(architecture).can.has_vectors else None
    if reranker is not None:
        config.setdefault("pair_truncate", find_longest_input(reranker, backbone))
    longest = config.get("pair_truncate")
    if longest is None:
        text.lay_out(_fit_text(text.config, backbone, architecture, explicit=explicit))
    elif encoder is not None:
        lengths = {"text_truncate": longest // 4, "label_truncate": longest}
        text.lay_out(replace(text.config, **{name: length for name, length in lengths.items() if name not in explicit}))
    if reranker is not None and "pair_start" not in config:
        config["pair_start"] = read_pair_start(reranker, text)


def _fit_text(
    text: TextConfig, backbone: Mapping[str, Any], architecture: Architecture, *, explicit: Collection[str]
) -> TextConfig:
    limit, together = get_max_length({**backbone}), not get_family(architecture).can.has_vectors
    if limit is None:
        return text
    if together and text.longest_context + text.label_truncate <= limit:
        return text
    longest_label = (
        limit if not together else limit // 3 if "text_truncate" not in explicit else (limit - text.longest_context)
    )
    fitted = text
    if "label_truncate" not in explicit and text.label_truncate > longest_label:
        fitted = replace(fitted, label_truncate=max(3, longest_label))
    room = limit - (fitted.label_truncate if together else 0)
    if "text_truncate" not in explicit and text.longest_context > room:
        fitted = replace(fitted, text_truncate=max(3, text.text_truncate - (text.longest_context - room)))
    for name in ("text_truncate", "label_truncate"):
        if (value := getattr(fitted, name)) != getattr(text, name):
            _log.info("%s is %d, not %d: the encoder takes %d tokens", name, value, getattr(text, name), limit)
    return fitted


def _check_vectors(architecture: Architecture, config: Mapping[str, Any]) -> None:
    """Raises ConfigError for fields of vectors that this architecture does not have."""
    traits = get_family(architecture).can
    if config.get("normalize") and not traits.has_vectors:
        raise ConfigError(
            f"normalize: a {traits.title} has no vectors to normalize: leave it out", argument="normalize"
        )


def from_encoder(
    name: str | os.PathLike[str],
    architecture: Architecture,
    *,
    text: dict[str, Any],
    separator: TurnSeparator | None,
    config: dict[str, Any],
    trained: bool = True,
) -> Parts:
    """Builds a ranker around a pre-trained encoder; see `Ranker.from_backbone`.

    A ranker that is not `trained` further ranks as it is: the encoder's files must hold all its weights, and as a
    bi-encoder it reads as much of a text as it can.
    """
    from polyencoder.modeling.loading import load_pretrained, load_tokenizer

    _check_vectors(architecture, config)
    backbone = load_pretrained(name)
    if not trained and architecture == "bi":
        text = read_lengths(name, get_backbone_config(backbone.model)) | text
        if layers := describe_left_out(name):
            raise ConfigError(
                f"{name}: rankers do not have its {layers}, behind its transformer: train a ranker around it first",
                argument="backbone",
            )
    if config.pop("residual", None):
        raise build_residual_error(f"{name} is an encoder")
    tokenizer, special = load_tokenizer(name)
    special = separate_turns(tokenizer, special, separator or choose_separator(tokenizer))
    words: Any = backbone.model.get_input_embeddings()
    if not trained and (excess := tokenizer.get_vocab_size() - words.num_embeddings) > 0:
        last = max(tokenizer.get_vocab().items(), key=lambda item: item[1])[0]
        raise CheckpointError(
            f"{name}: its tokenizer has {excess} tokens more than its embeddings, such as {last!r}: save it after "
            " `resize_token_embeddings` and training, or take the tokens out"
        )
    backbone.resize(tokenizer.get_vocab_size())
    words = TextEncoder(tokenizer, TextConfig(**(special | read_prompts(name, explicit=text) | text)))
    config = read_config_fields(name, architecture, explicit=config) | config
    encoder = get_backbone_config(backbone.model)
    lay_out(words, config, encoder, architecture, explicit=text, encoder=name)
    new = RankerConfig(architecture=architecture, backbone=encoder, text=words.config, **config)
    model = build_model(get_family(architecture).model.completed(new, words), backbone)
    start_from_heads(model, name)
    start_from_dense(model, name)
    return model.eval(), words


def from_ranker(
    other: Parts,
    architecture: Architecture,
    *,
    origin: str,
    text: dict[str, Any],
    separator: TurnSeparator | None,
    config: dict[str, Any],
) -> Parts:
    """Builds a ranker from another's encoders, tokenizer and, where the architecture has them, other weights.

    `config` and `text` are explicit fields, `config` with the `residual` of `select_inherited_fields`; others are
    inherited (`select_inherited_fields`) or defaults. `origin` names the other ranker in errors. Raises ConfigError if
    one of the two is a ConveRT, or for a `separator` that is not the other's, whose tokenizer is kept.
    """
    model, words = other
    stored, stored_separator = model.config, get_turn_separator(words.config)
    if not (get_family(architecture).has_backbone and get_family(stored.architecture).has_backbone):
        raise ConfigError(
            f"{origin} is of the architecture {stored.architecture}: no {architecture} model can start from it"
        )
    if separator not in (None, stored_separator):
        raise ConfigError(
            f"{origin} has the turn_separator {stored_separator!r}, which cannot be changed: leave it out"
        )
    _check_vectors(architecture, config)
    residual = config.pop("residual", None)
    fields = select_inherited_fields(stored, architecture, explicit=config, residual=residual) | config
    words = TextEncoder(words.tokenizer, replace(words.config, **{"candidate_rows": False, **text}))
    lay_out(words, fields, stored.backbone, architecture, explicit=text)
    described = RankerConfig(architecture=architecture, backbone=stored.backbone, text=words.config, **fields)
    check_layout(described)
    new = build_model(get_family(architecture).model.completed(described, words))
    transfer_weights(new, model.state_dict(), origin=origin)
    return new.eval(), words


def from_vocabulary(
    vocabulary: str | os.PathLike[str], *, extra_contexts: int, text: dict[str, Any], sizes: dict[str, Any]
) -> Parts:
    """Builds a ConveRT with random weights; see `Ranker.from_vocabulary`."""
    tokenizer = read_subwords(vocabulary)
    config = ConvertConfig(
        **{"multi_context": extra_contexts != 0, **sizes}, vocab_size=tokenizer.get_vocab_size(False)
    )
    layout = replace(convert_text(extra_contexts=extra_contexts), **text)
    return build_model(convert_ranker(config, layout)), TextEncoder(tokenizer, layout)
