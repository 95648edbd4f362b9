"""The transformer under a ranker: any Hugging Face encoder, by hub id, by folder, or from scratch."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from polyencoder.errors import ConfigError, first_line, one_line
from polyencoder.modeling import attention, varlen
from polyencoder.modeling.bf16 import Bf16Twin, round_weights
from polyencoder.modeling.cpu.modules import for_cpu
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.packing import Packing, pack
from polyencoder.modeling.packing_check import why_not_packed
from polyencoder.modeling.tracing import is_traced
from polyencoder.online import hub_id_problem, there, was_downloaded, why_no_hub
from polyencoder.text.lengths import length_groups
from polyencoder.text.tokens import TokenBatch
from polyencoder.text.vocabulary import special_tokens

# Keys of a Hugging Face configuration that say where it came from, not what it is.
_PROVENANCE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "_attn_implementation")

_log = logging.getLogger(__name__)
_trying = threading.Lock()  # while packing is tried, a model's weights and mode are others: other threads wait


class Backbone(nn.Module):
    """A Hugging Face encoder as a function from tokens to the outputs of its last layer.

    It has no pooler, which the rankers do not use: that would only cost memory and, in distributed training, be a
    parameter without a gradient. The model that was given stays as it is; the parameters are the same.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        tensors = (*model.parameters(), *model.buffers())
        model = deepcopy(model, {id(tensor): tensor for tensor in tensors})  # modules and configuration alone
        if getattr(model, "pooler", None) is not None:
            model.register_module("pooler", None)
        attention.use_our_attention(model)
        for_cpu(model)
        self.model = model
        self.compiled = False  # `compile_encoders` says so
        self.takes_segments = int(getattr(model.config, "type_vocab_size", 0) or 0) >= 2
        self.first_position = first_position(model.config.to_dict())
        self._packs: bool | None = None  # not known yet
        self._bf16 = Bf16Twin()
        self.rounded = False
        """Whether `round` has changed its weights: such a model is neither trained nor exported."""

    @property
    def dim(self) -> int:
        return int(self.model.config.hidden_size)

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Outputs of the last layer: [batch, length, dim]. Those at padding mean nothing.

        Little or none of the padding goes through the model where it costs as much as text: on a CPU learning takes all
        sequences in one row, and computes what it keeps anyway in one go; else groups of like length take turns in the
        processor's caches. On a GPU there is a row where attention has a kernel for it.
        """
        if is_traced() or not len(tokens):
            return self._run(tokens)
        if self._row_is_faster(tokens) and self.packs:
            return self._run_packed(tokens, pack(tokens.mask))
        return self._run_grouped(tokens) if tokens.ids.device.type == "cpu" else self._run(tokens)

    @property
    def packs(self) -> bool:
        """Whether it takes all sequences in one row: tried once, when first asked for; the log says why not."""
        if self._packs is None:
            with _trying:
                if self._packs is None:
                    reason = self._why_not_packed()
                    if reason is not None:
                        _log.warning("a %s encoder runs padded: %s", self.model.config.model_type, reason)
                    self._packs = reason is None
        return self._packs and self._implementation == attention.NAME

    def _why_not_packed(self) -> str | None:
        if self._implementation != attention.NAME:
            return f"its attention is {self._implementation!r}, of its own"
        config = self.model.config

        def run(tokens: TokenBatch, packing: Packing | None) -> Tensor:
            return self._run(tokens) if packing is None else self._run_packed(tokens, packing)

        return why_not_packed(
            self.model,
            run,
            layers=int(config.num_hidden_layers),
            longest=max_length(config.to_dict()) or 1 << 20,
            window=int(getattr(config, "local_attention", None) or getattr(config, "sliding_window", None) or 0),
        )

    @property
    def _implementation(self) -> str | None:
        return self.model.config._attn_implementation

    def _row_is_faster(self, tokens: TokenBatch) -> bool:
        """Whether sequences go through in one row, if the model can."""
        if self.compiled:
            return False
        device = tokens.ids.device
        if device.type == "cpu":
            return torch.is_grad_enabled()
        autocast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocast else next(self.model.parameters()).dtype
        return varlen.has_kernel(device, dtype)

    def _run(self, tokens: TokenBatch, words: Tensor | None = None) -> Tensor:
        """The model's outputs for tokens, of which the word embeddings may be there already.

        A sequence without any token sees its first padding: no row of attention weights may be without any.
        """
        inputs = {"input_ids": tokens.ids} if words is None else {"inputs_embeds": words}
        inputs["attention_mask"] = torch.cat([torch.ones_like(tokens.mask[:, :1]), tokens.mask[:, 1:]], dim=1).long()
        if self.takes_segments and tokens.segments is not None:
            inputs["token_type_ids"] = tokens.segments
        return self._call(inputs)

    def _run_packed(self, tokens: TokenBatch, packing: Packing) -> Tensor:
        """All sequences in one row, which attention alone takes apart."""
        inputs = {
            "input_ids": packing.take(tokens.ids),
            "position_ids": packing.positions.unsqueeze(0) + self.first_position,
            # Of four dimensions, which models take as it is: that it is no padding. Who sees whom the packing says.
            "attention_mask": tokens.mask.new_ones(1, 1, 1, len(packing.places)),
        }
        if self.takes_segments and tokens.segments is not None:
            inputs["token_type_ids"] = packing.take(tokens.segments)
        return packing.put(self._call({**inputs, "packing": packing}), *tokens.ids.shape)

    def _call(self, inputs: dict[str, Any]) -> Tensor:
        """The outputs of the last layer, in float32 where weights were rounded: what is made of them is exact."""
        model = self._rounded_model()
        if model is None:
            output: Tensor = self.model(**inputs).last_hidden_state
            return output
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            return model(**inputs).last_hidden_state.float()

    def round(self, dtype: torch.dtype) -> None:
        """Have the weights in another type, for inference and for good; outputs stay in float32."""
        round_weights(self, dtype)
        self.rounded = True

    def _rounded_model(self) -> nn.Module | None:
        """The model with rounded weights: itself, or its twin where bfloat16 is asked for and nothing is learnt."""
        if self.rounded:
            return self.model
        if self.training or torch.is_grad_enabled():
            self._bf16.forget()  # the weights may change now, and fused optimizers do not count that
            return None
        weight = next(self.model.parameters())
        device = weight.device.type
        if weight.dtype != torch.float32 or self.compiled or is_traced():
            return None
        if not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != torch.bfloat16:
            return None
        return self._bf16.of(self.model)

    def train(self, mode: bool = True) -> Backbone:
        if mode:
            self._bf16.forget()
        return super().train(mode)

    def _run_grouped(self, tokens: TokenBatch) -> Tensor:
        """Sequences of like length together."""
        groups = length_groups(tokens.mask.sum(1).tolist())
        if len(groups) == 1:
            return self._run(tokens)
        width = tokens.ids.size(1)
        order = torch.tensor([row for rows in groups for row in rows])
        parts = [tokens.select(rows) for rows in order.split([len(rows) for rows in groups])]
        outputs = [self._run(part, words) for part, words in zip(parts, self._words(parts), strict=True)]
        padded = torch.cat([F.pad(part, (0, 0, 0, width - part.size(1))) for part in outputs])
        return padded[order.argsort()]

    def _words(self, parts: Sequence[TokenBatch]) -> Sequence[Tensor | None]:
        """The word embeddings of each part, when they learn: one look-up has one gradient of the table's size."""
        table = self.model.get_input_embeddings()
        if not (torch.is_grad_enabled() and isinstance(table, nn.Embedding) and table.weight.requires_grad):
            return [None] * len(parts)
        words = table(torch.cat([part.ids.flatten() for part in parts])).split([part.ids.numel() for part in parts])
        return [part_words.view(*part.ids.shape, -1) for part_words, part in zip(words, parts, strict=True)]

    def resize(self, vocabulary_size: int) -> bool:
        """Make room for tokens that were added to the vocabulary; embeddings that are there stay. Says if it had to."""
        words: Any = self.model.get_input_embeddings()
        if vocabulary_size <= words.num_embeddings:
            return False
        self.model.resize_token_embeddings(vocabulary_size)
        return True

    def embeddings(self) -> nn.Module:
        """The embedding block: words, positions, segments and their normalisation."""
        embeddings = getattr(self.model, "embeddings", None)
        return embeddings if isinstance(embeddings, nn.Module) else self.model.get_input_embeddings()

    def layers(self) -> nn.ModuleList:
        """The transformer layers, first to last."""
        count = int(self.model.config.num_hidden_layers)
        for module in self.model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return module
        raise ConfigError(f"cannot find the {count} layers of a {self.model.config.model_type} model")


_MOST_LAYERS = 1_000


def backbone_config(model: PreTrainedModel) -> dict[str, Any]:
    """The configuration of a model as a plain dictionary that `build_backbone` takes."""
    return _plain(model.config)


def build_backbone(config: dict[str, Any]) -> Backbone:
    """An encoder of this configuration with fresh random weights.

    Beside the keys of Hugging Face there may be `embedding_norm`: false leaves out the normalization of the embeddings.
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
    except Exception as error:  # transformers and torch each have their own words for a value that cannot be
        raise ConfigError(f"no {model_type} can be made of the backbone's configuration: {one_line(error)}") from error
    if not embedding_norm:
        model.embeddings.LayerNorm = nn.Identity()
    return Backbone(model)


# How the families of encoders name their dropout: of the hidden states, of the attention weights
_DROPOUT = ("hidden_dropout_prob", "mlp_dropout", "embedding_dropout", "dropout")
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")


def with_dropout(config: dict[str, Any], *, dropout: float | None, attention_dropout: float | None) -> dict[str, Any]:
    """The configuration of an encoder with other rates of dropout; None leaves one as it is."""
    rates = _dropout_keys(dropout, attention_dropout)
    return config | {key: rate for key, rate in rates.items() if key in config}


def _dropout_keys(dropout: float | None, attention_dropout: float | None) -> dict[str, float]:
    groups = ((_DROPOUT, dropout), (_ATTENTION_DROPOUT, attention_dropout))
    return {key: rate for keys, rate in groups if rate is not None for key in keys}


def load_pretrained(
    name: str | os.PathLike[str], *, dropout: float | None = None, attention_dropout: float | None = None
) -> Backbone:
    """A pre-trained encoder by hub id or folder, in float32, with its own dropout unless another is given.

    Code that comes with a model is never run. Raises ConfigError when there is no such model or it is not a plain
    encoder, CheckpointError when its weights are not finite.
    """
    with _explaining(name) as where:
        # trust_remote_code: when it is not given, transformers asks on the terminal and runs the code after a "y"
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **where)
        for key, rate in _dropout_keys(dropout, attention_dropout).items():
            if hasattr(config, key):
                setattr(config, key, rate)
        model = AutoModel.from_pretrained(name, config=config, dtype=torch.float32, trust_remote_code=False, **where)
    if not _is_encoder(model):
        raise ConfigError(
            f"backbone {name}: {model.config.model_type} is not an encoder; use BERT, RoBERTa, MiniLM or ModernBERT",
            argument="backbone",
        )
    check_finite(model.named_parameters(), origin=f"backbone {name}")
    return Backbone(model)


def _is_encoder(model: PreTrainedModel) -> bool:
    """Whether every token sees every other: no decoder, and none beside it. Not all decoders' configurations say so."""
    if getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "is_decoder", False):
        return False
    return not any(getattr(module, "is_causal", False) for module in model.modules())


def load_tokenizer(name: str | os.PathLike[str]) -> tuple[Tokenizer, dict[str, str]]:
    """The fast tokenizer of a pre-trained encoder, and its special tokens as fields of a `TextConfig`."""
    with _explaining(name) as where:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False, **where)
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(f"backbone {name}: its tokenizer has no fast (tokenizer.json) version", argument="backbone")
    return tokenizer.backend_tokenizer, special_tokens(tokenizer)


@contextmanager
def _explaining(name: str | os.PathLike[str]) -> Iterator[dict[str, bool]]:
    """Give where transformers may look for a model, and turn what it raises into one line."""
    offline = None
    if not there(name):
        if reason := hub_id_problem(name):
            raise ConfigError(
                f"backbone {os.fspath(name):.300}: {reason}; give the folder of an encoder", argument="backbone"
            )
        offline = why_no_hub()
    problem = f"backbone {name}: neither a folder of a Hugging Face encoder nor a hub id that can be reached"
    if offline and not was_downloaded(name):
        raise ConfigError(f"{problem} (not downloaded before, and {offline})", argument="backbone")
    try:
        yield {"local_files_only": offline is not None}
    except Exception as error:  # transformers passes on what the readers of its files raise, down to plain Exception
        raise ConfigError(f"{problem} ({first_line(error)})", argument="backbone") from error


def scratch_config(
    *,
    vocabulary_size: int,
    dim: int,
    n_layers: int,
    n_heads: int,
    ffn_dim: int,
    n_positions: int,
    activation: str = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    pad_id: int = 0,
    layer_norm_eps: float = 1e-5,
) -> dict[str, Any]:
    """The configuration of a BERT of these dimensions: ParlAI's `xlm` variant, a post-layer-norm encoder."""
    if dim % n_heads:
        raise ConfigError(f"dim is {dim}, which is not a multiple of n_heads, {n_heads}", argument="dim")
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=dim,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=ffn_dim,
        max_position_embeddings=n_positions,
        hidden_act=activation,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
        type_vocab_size=2,
        layer_norm_eps=layer_norm_eps,
        pad_token_id=pad_id,
        initializer_range=min(0.02 * (768 / dim) ** 0.5, 0.1),  # BERT's 0.02 at its 768 dimensions
    )
    return _plain(config)


def _plain(config: PretrainedConfig) -> dict[str, Any]:
    values = {key: value for key, value in config.to_dict().items() if key not in _PROVENANCE}
    # as JSON gives it back (keys are text, tuples lists), so that a configuration is the same before and after saving
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def max_length(config: dict[str, Any]) -> int | None:
    """The longest sequence, in tokens, that an encoder of this configuration takes; None when it has no limit."""
    positions = config.get("max_position_embeddings")
    if not positions:
        return None
    if not isinstance(positions, int):
        raise ConfigError(f"the backbone's max_position_embeddings is {positions!r:.60}; it must be a whole number")
    return int(positions) - first_position(config)


def first_position(config: dict[str, Any]) -> int:
    """The number of a sequence's first position: RoBERTa and its kin count from the padding id + 1."""
    return (config.get("pad_token_id") or 0) + 1 if config["model_type"] in _POSITIONS_AFTER_PADDING else 0


_POSITIONS_AFTER_PADDING = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
