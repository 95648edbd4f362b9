"""Loads pre-trained encoders and tokenizers by hub id or folder; builds encoders from a configuration."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from polyencoder.errors import CheckpointError, ConfigError, join_lines
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.encoder_config import build_dropout_keys
from polyencoder.modeling.encoder_files import ADAPTERS, explaining_load, read_json
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.sentence_encoder import SentenceEncoder, read_sentence_encoder
from polyencoder.packages import errors_alone, require
from polyencoder.text.vocabulary import read_special_tokens

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding


class StaticConfig(PretrainedConfig):
    """The size of a static encoder's table."""

    model_type = "static_embedding"

    def __init__(self, vocab_size: int = 30_000, hidden_size: int = 256, **options: Any) -> None:
        super().__init__(**options)
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, 0


class StaticModel(PreTrainedModel):
    """sentence-transformers' `StaticEmbedding` as a transformers model without layers: [batch, length, dim]."""

    config_class = StaticConfig
    base_model_prefix = "static"

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings = value

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds)


def build_static_model(embedding: StaticEmbedding) -> StaticModel:
    """A static encoder's table as a model, in float32."""
    model = StaticModel(StaticConfig(embedding.num_embeddings, embedding.embedding_dim))
    with torch.no_grad():
        model.embeddings.weight.copy_(embedding.embedding.weight)
    return model.eval()


def build_static_tokenizer(embedding: StaticEmbedding) -> tuple[Tokenizer, dict[str, Any]]:
    """A static encoder's tokenizer, and `TextConfig` fields of texts without special tokens but for padding."""
    tokenizer = embedding.tokenizer
    pad = next((pad for pad in ("[PAD]", "<pad>") if tokenizer.token_to_id(pad) is not None), tokenizer.id_to_token(0))
    tokens = dict.fromkeys(("start_token", "end_token", "pad_token", "empty_token"), pad)
    return tokenizer, {**tokens, "separator": "", "surround": False}


AutoConfig.register(StaticConfig.model_type, StaticConfig, exist_ok=True)
AutoModel.register(StaticConfig, StaticModel, exist_ok=True)


_MAX_LAYERS = 1_000
_WRAPPERS = r"^(_orig_mod\.|module\.|0\.auto_model\.|0\.model\.|auto_model\.)+"
"""Prefixes of weights' names by torch.compile, DistributedDataParallel and sentence-transformers."""


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
        if int(getattr(hf_config, "num_hidden_layers", 1)) > _MAX_LAYERS:
            raise ValueError(f"num_hidden_layers is {hf_config.num_hidden_layers}, more than {_MAX_LAYERS:,}")
        model = AutoModel.from_config(hf_config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # transformers and torch raise many types for invalid values
        raise ConfigError(f"the backbone's configuration is not a valid {model_type}: {join_lines(error)}") from error
    if not embedding_norm:
        model.embeddings.LayerNorm = nn.Identity()
    return Backbone(model)


def load_pretrained(
    name: str | os.PathLike[str], *, dropout: float | None = None, attention_dropout: float | None = None
) -> Backbone:
    """Loads a pre-trained encoder by hub id or folder, in float32, with its own dropout unless given.

    Code that comes with a model is never run. Raises ConfigError if the model does not exist or is not a plain encoder,
    CheckpointError if weights are missing or not finite.
    """
    with explaining_load(name) as options:
        encoder = read_sentence_encoder(name)
        if encoder is not None and encoder.static is not None:
            return Backbone(build_static_model(encoder.static))
        model = _load(name, build_dropout_keys(dropout, attention_dropout), **_locate(encoder), **options)
    is_decoder = getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "is_decoder", False)
    # not all decoders' configurations say so
    if is_decoder or any(getattr(module, "is_causal", False) for module in model.modules()):
        raise ConfigError(
            f"backbone {name}: {model.config.model_type} is not an encoder; use BERT, RoBERTa, MiniLM or ModernBERT",
            argument="backbone",
        )
    check_finite(model.named_parameters(), origin=f"backbone {name}")
    return Backbone(model)


def _load(name: str | os.PathLike[str], rates: dict[str, float], **options: Any) -> Any:
    """Loads an encoder's model. CheckpointError, which names the first missing weight, if its files lack any."""
    file = f"{options.get('subfolder', '')}/{ADAPTERS}".lstrip("/")
    if (adapters := read_json(name, file, dict)) is not None:
        return _load_lora(name, adapters, rates, **options)
    # without trust_remote_code=False, transformers asks on the terminal and runs the code after a "y"
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
    for key, rate in rates.items():
        if hasattr(config, key):
            setattr(config, key, rate)
    model, missing = None, ["all"]
    for mapping in (None, {_WRAPPERS: ""}):
        if missing:
            with errors_alone("transformers"):  # it does not report `missing_keys` itself
                model, report = AutoModel.from_pretrained(
                    name,
                    config=config,
                    dtype=torch.float32,
                    trust_remote_code=False,
                    output_loading_info=True,
                    key_mapping=mapping,
                    **options,
                )
            # the pooler is never used, and tensors beyond the encoder's are heads
            missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise CheckpointError(
            f"backbone {name}: {len(missing)} weights of its {config.model_type} are not in its files, such as "
            f"{missing[0]}; save the whole encoder with `save_pretrained`"
        )
    return model


def _load_lora(name: str | os.PathLike[str], adapters: dict[str, Any], rates: dict[str, float], **options: Any) -> Any:
    """Loads the encoder that PEFT's adapters belong to, and merges them into its weights."""
    base = adapters.get("base_model_name_or_path")
    peft = require("peft", extra="lora")
    if not isinstance(base, str) or adapters.get("peft_type") != "LORA":
        raise ConfigError(
            f"backbone {name}: holds adapters of the kind {adapters.get('peft_type')!r:.60}, of {base!r:.200}; LORA "
            "alone can be read",
            argument="backbone",
        )
    try:
        with explaining_load(base) as base_options:
            model = _load(base, rates, **base_options)
    except ConfigError as error:
        raise ConfigError(
            f"backbone {name}: holds LoRA adapters of the encoder {base}, which must be there too: {error}",
            argument="backbone",
        ) from None
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing adapter keys")
        return peft.PeftModel.from_pretrained(model, os.fspath(name), **options).merge_and_unload()


def _locate(encoder: SentenceEncoder | None) -> dict[str, str]:
    return {"subfolder": encoder.subfolder} if encoder and encoder.subfolder else {}


def load_tokenizer(name: str | os.PathLike[str]) -> tuple[Tokenizer, dict[str, Any]]:
    """Loads an encoder's fast tokenizer, and its special tokens as fields of a `TextConfig`."""
    with explaining_load(name) as options:
        encoder = read_sentence_encoder(name)
        if encoder is not None and encoder.static is not None:
            return build_static_tokenizer(encoder.static)
        loaded = AutoTokenizer.from_pretrained(
            name, use_fast=True, trust_remote_code=False, **_locate(encoder), **options
        )
    if not getattr(loaded, "is_fast", False):
        raise ConfigError(f"backbone {name}: its tokenizer has no fast (tokenizer.json) version", argument="backbone")
    tokenizer: Tokenizer = loaded.backend_tokenizer
    tokenizer.no_padding()  # MiniLM's file pads each text to 128 tokens
    tokenizer.no_truncation()
    if encoder is not None and encoder.lower_case:
        steps = [normalizers.Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
        tokenizer.normalizer = normalizers.Sequence(steps)
    special: dict[str, Any] = read_special_tokens(loaded)
    if encoder is not None:
        special |= _surround(name, tokenizer, special)
    return tokenizer, special


def _surround(name: str | os.PathLike[str], tokenizer: Tokenizer, special: dict[str, Any]) -> dict[str, bool]:
    """Whether a sentence encoder's texts have start and end tokens, as a field of a `TextConfig`."""
    ids, surrounded = (tokenizer.encode("a", add_special_tokens=add).ids for add in (False, True))
    if surrounded == ids:
        return {"surround": False}
    start, end = (tokenizer.token_to_id(special[token]) for token in ("start_token", "end_token"))
    if surrounded != [start, *ids, end]:
        raise ConfigError(
            f"backbone {name}: its tokenizer makes {' '.join(tokenizer.encode('a').tokens)} of the text a; rankers "
            "surround texts with a start and an end token, or with none",
            argument="backbone",
        )
    return {}
