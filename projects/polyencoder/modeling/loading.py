"""Loads pre-trained encoders and tokenizers by hub id or folder; builds encoders from a configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as hf_logging

from polyencoder.errors import ConfigError, first_line, one_line
from polyencoder.hub.resolve import exists, hub_id_problem, hub_unreachable_reason, was_downloaded
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import dropout_keys
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.static import load_static, static_tokenizer
from polyencoder.packages import errors_alone
from polyencoder.storage.publish import finish_publication
from polyencoder.text.vocabulary import special_tokens

_log = logging.getLogger(__name__)
_MOST_LAYERS = 1_000


def build_backbone(config: dict[str, Any]) -> Backbone:
    """Builds an encoder with random weights.

    In addition to Hugging Face's keys, `embedding_norm: false` leaves out the normalization of embeddings.
    """
    values = dict(config)
    model_type, embedding_norm = values.pop("model_type"), values.pop("embedding_norm", True)
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(f"this version of transformers knows no model type {model_type!r:.60}")
    try:
        hf_config = AutoConfig.for_model(model_type, **values)
        if int(getattr(hf_config, "num_hidden_layers", 1)) > _MOST_LAYERS:
            raise ValueError(f"num_hidden_layers is {hf_config.num_hidden_layers}, more than {_MOST_LAYERS:,}")
        model = AutoModel.from_config(hf_config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # transformers and torch raise many types for invalid values
        raise ConfigError(f"the backbone's configuration is not a valid {model_type}: {one_line(error)}") from error
    if not embedding_norm:
        model.embeddings.LayerNorm = nn.Identity()
    return Backbone(model)


def load_pretrained(
    name: str | os.PathLike[str], *, dropout: float | None = None, attention_dropout: float | None = None
) -> Backbone:
    """Loads a pre-trained encoder by hub id or folder, in float32, with its own dropout unless given.

    Code that comes with a model is never run. Raises ConfigError if the model does not exist or is not a plain encoder,
    CheckpointError if its weights are not finite.
    """
    with _explaining(name) as where:
        static = load_static(name)
        # without trust_remote_code=False, transformers asks on the terminal and runs the code after a "y"
        config = static.config if static else AutoConfig.from_pretrained(name, trust_remote_code=False, **where)
        for key, rate in dropout_keys(dropout, attention_dropout).items():
            if hasattr(config, key):
                setattr(config, key, rate)
        model, found = (static, {}) if static else _loaded(name, config=config, **where)
    # the pooler is never used, and what the files have beyond an encoder are heads
    if missing := sorted(key for key in found.get("missing_keys", ()) if "pooler" not in key):
        what = f"{len(missing)} of its weights are not in its files and random, such as {missing[0]}"
        _log.warning("backbone %s: %s", name, what)
    is_decoder = getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "is_decoder", False)
    # not all decoders' configurations say so
    if is_decoder or any(getattr(module, "is_causal", False) for module in model.modules()):
        raise ConfigError(
            f"backbone {name}: {model.config.model_type} is not an encoder; use BERT, RoBERTa, MiniLM or ModernBERT",
            argument="backbone",
        )
    check_finite(model.named_parameters(), origin=f"backbone {name}")
    return Backbone(model)


def _loaded(name: str | os.PathLike[str], **options: Any) -> tuple[Any, dict[str, Any]]:
    """Loads an encoder's model, with the names of its `missing_keys`, which transformers does not report itself."""
    with errors_alone("transformers"):
        found: tuple[Any, dict[str, Any]] = AutoModel.from_pretrained(
            name, dtype=torch.float32, trust_remote_code=False, output_loading_info=True, **options
        )
    return found


def load_tokenizer(name: str | os.PathLike[str]) -> tuple[Tokenizer, dict[str, Any]]:
    """Loads an encoder's fast tokenizer, and its special tokens as fields of a `TextConfig`."""
    with _explaining(name) as where:
        if (static := static_tokenizer(name)) is not None:
            return static
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False, **where)
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(f"backbone {name}: its tokenizer has no fast (tokenizer.json) version", argument="backbone")
    return tokenizer.backend_tokenizer, special_tokens(tokenizer)


@contextmanager
def _explaining(name: str | os.PathLike[str]) -> Iterator[dict[str, bool]]:
    """Raises transformers' errors as a one-line ConfigError; yields the arguments for offline use."""
    offline = None
    if exists(name):
        finish_publication(name)
    else:
        if reason := hub_id_problem(name):
            raise ConfigError(
                f"backbone {os.fspath(name):.300}: {reason}; give the folder of an encoder", argument="backbone"
            )
        offline = hub_unreachable_reason()
    problem = f"backbone {name}: neither a folder of a Hugging Face encoder nor a hub id that can be reached"
    if offline and not was_downloaded(name):
        raise ConfigError(f"{problem} (not downloaded before, and {offline})", argument="backbone")
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # "Loading weights", over in a moment
    try:
        yield {"local_files_only": offline is not None}
    except ConfigError:
        raise
    except Exception as error:  # transformers passes on the errors of its file readers, even plain Exception
        raise ConfigError(f"{problem} ({first_line(error)})", argument="backbone") from error
    finally:
        if bars:
            hf_logging.enable_progress_bar()
