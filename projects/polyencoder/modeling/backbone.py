"""`Backbone`: runs any Hugging Face encoder, padded, grouped by length or packed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from polyencoder.errors import ConfigError
from polyencoder.modeling import attention, varlen
from polyencoder.modeling.cpu.modules import replace_layers
from polyencoder.modeling.encoder_config import get_first_position, get_max_length
from polyencoder.modeling.last_layer import LastLayer
from polyencoder.modeling.packing import Blocks, Packing, pack
from polyencoder.modeling.packing_check import explain_unpacked, gives_first
from polyencoder.modeling.relative import make_packable
from polyencoder.modeling.rounding import LowPrecisionWeights
from polyencoder.modeling.tracing import is_traced
from polyencoder.text.batches import group_lengths
from polyencoder.text.tokens import TokenBatch

_log = logging.getLogger(__name__)
ROW = 1 << 10  # tokens whose activations fit a CPU's caches
_check_lock = threading.Lock()  # the packing check changes a model's weights and mode for a moment


class Backbone(nn.Module):
    """A Hugging Face encoder: token ids to the outputs of its last layer.

    The pooler is removed: rankers do not use it, and in distributed training it would be a parameter without gradient.
    The model passed in is unchanged; its parameters are shared.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        tensors = (*model.parameters(), *model.buffers())
        model = deepcopy(model, {id(tensor): tensor for tensor in tensors})  # modules and configuration alone
        if getattr(model, "pooler", None) is not None:
            model.register_module("pooler", nn.Identity())  # some families always call it
        model = make_packable(model)
        attention.use_our_attention(model)
        replace_layers(model)
        self.model = model
        self.takes_segments = int(getattr(model.config, "type_vocab_size", 0) or 0) >= 2
        self.first_position = get_first_position(model.config.to_dict())
        self._packs: bool | None = None  # not checked yet
        self._gives_first = False
        self._weights = LowPrecisionWeights()
        self._compiled = False

    @property
    def dim(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def has_layers(self) -> bool:
        """Whether outputs are more than the tokens' embeddings."""
        return int(getattr(self.model.config, "num_hidden_layers", 1)) > 0

    def forward(self, tokens: TokenBatch, *, first_only: bool = False) -> Tensor:
        """Outputs of the last layer: [batch, length, dim], undefined at padding.

        With `first_only`, the outputs of the first tokens, [batch, 1, dim]: in inference on a CPU the last layer
        computes these alone (in training, dropout would draw other random numbers).

        Padding is avoided if it costs time. On a CPU sequences are packed: in one row in training, which keeps all
        activations anyway, in rows that fit the caches in inference. Models that cannot be packed run on groups of
        similar length. On a GPU sequences are packed if there is a variable-length attention kernel.
        """
        if is_traced() or not len(tokens) or not self.has_layers:
            outputs = self._run(tokens)
        elif self._is_row_faster(tokens) and self.packs:
            outputs = self._run_packed(tokens, first_only=first_only)
        else:
            outputs = self._run_grouped(tokens) if tokens.ids.device.type == "cpu" else self._run(tokens)
        return outputs[:, :1] if first_only else outputs

    @property
    def packs(self) -> bool:
        """Whether the model supports packed rows: checked on first use; a warning logs why not."""
        if self._packs is None:
            with _check_lock:
                if self._packs is None:
                    reason = self._explain_unpacked()
                    if reason is not None:
                        _log.warning("a %s encoder runs padded: %s", self.model.config.model_type, reason)
                    self._packs = reason is None
                    if self._packs:
                        self._replace_last_layer()
        return self._packs and self._implementation == attention.NAME

    def _explain_unpacked(self) -> str | None:
        if self._implementation != attention.NAME:
            return f"its attention is {self._implementation!r}"
        config = self.model.config
        return explain_unpacked(
            self.model,
            self._run_either_way,
            layers=int(config.num_hidden_layers),
            longest=get_max_length(config.to_dict()) or 1 << 20,
            window=int(getattr(config, "local_attention", None) or getattr(config, "sliding_window", None) or 0),
        )

    def _run_either_way(self, tokens: TokenBatch, packing: Packing | None) -> Tensor:
        if packing is None:
            return self._run(tokens)
        return packing.put(self._run_row(tokens, packing), *tokens.ids.shape)

    def _replace_last_layer(self) -> None:
        """Replaces the last layer by `LastLayer`, if its outputs are the same."""
        if self._find_layers() is None:  # layers share weights, as in ALBERT
            return
        layers: Any = self.get_layers()
        last = layers[-1]
        if next(self.model.parameters()).device.type != "cpu" or not LastLayer.fits(last):
            return
        ours = LastLayer(last)

        def run_first(tokens: TokenBatch, packing: Blocks) -> Tensor:
            return packing.put_first(self._run_row(tokens, packing, first_only=True), *tokens.ids.shape)

        self._gives_first = gives_first(
            self.model,
            self._run_either_way,
            run_first,
            change=lambda: layers.__setitem__(-1, ours),
            longest=get_max_length(self.model.config.to_dict()) or 1 << 20,
        )
        if not self._gives_first:
            layers[-1] = last

    @property
    def _implementation(self) -> str | None:
        return self.model.config._attn_implementation

    def _is_row_faster(self, tokens: TokenBatch) -> bool:
        """Whether packing is faster than padding, on this device and for this batch."""
        if self._compiled:
            return False
        device = tokens.ids.device
        if device.type == "cpu":
            return torch.is_grad_enabled() or len(tokens) > 1
        autocast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocast else next(self.model.parameters()).dtype
        return varlen.has_kernel(device, dtype)

    def _run(self, tokens: TokenBatch, words: Tensor | None = None) -> Tensor:
        """The model's outputs for tokens, or for their word embeddings if given.

        An empty sequence attends to its first padding token: attention needs at least one.
        """
        inputs = {"input_ids": tokens.ids} if words is None else {"inputs_embeds": words}
        inputs["attention_mask"] = torch.cat([torch.ones_like(tokens.mask[:, :1]), tokens.mask[:, 1:]], dim=1).long()
        if self.takes_segments and tokens.segments is not None:
            inputs["token_type_ids"] = tokens.segments
        return self._call(inputs)

    def _run_packed(self, tokens: TokenBatch, *, first_only: bool) -> Tensor:
        """Runs sequences packed in one row, or in several in inference."""
        training = torch.is_grad_enabled()
        packing = pack(tokens.mask, training=training)
        first = first_only and not training and self._gives_first
        rows = [self._run_row(tokens, part, first_only=first) for part in ([packing] if training else packing.cut(ROW))]
        row = torch.cat(rows, dim=1) if len(rows) > 1 else rows[0]
        if first and isinstance(packing, Blocks):
            return packing.put_first(row, *tokens.ids.shape)
        return packing.put(row, *tokens.ids.shape)

    def _run_row(self, tokens: TokenBatch, packing: Packing, *, first_only: bool = False) -> Tensor:
        """Outputs [1, tokens, dim] of a packed row; [1, sequences, dim] with `first_only`."""
        inputs: dict[str, Any] = {
            "input_ids": packing.take(tokens.ids),
            "position_ids": packing.positions.unsqueeze(0) + self.first_position,
            # A 4-D mask is passed on unchanged: no padding. The packing computes attention.
            "attention_mask": tokens.mask.new_ones(1, 1, 1, len(packing.indices)),
        }
        if self.takes_segments and tokens.segments is not None:
            inputs["token_type_ids"] = packing.take(tokens.segments)
        if first_only:
            inputs["first_only"] = True
        return self._call({**inputs, "packing": packing})

    def _call(self, inputs: dict[str, Any]) -> Tensor:
        """The outputs of the last layer, in float32 for low-precision weights, so that pooling and scores are exact."""
        training = self.training or torch.is_grad_enabled()
        model = None if self._compiled else self._weights.cast_model(self.model, training=training)
        if model is None:
            return self.model(**inputs).last_hidden_state
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            return model(**inputs).last_hidden_state.float()

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Casts the weights to `dtype`, permanently and for inference only; outputs stay in float32."""
        self._weights.cast(self.model, dtype)

    @property
    def rounded(self) -> bool:
        """Whether the weights were cast, so that the model can be neither trained nor exported."""
        return self._weights.permanent

    def compile(self, **options: Any) -> None:
        """Compiles the transformer on its first run; batches are then padded."""
        self.model.compile(**options)
        self._compiled = True

    def train(self, mode: bool = True) -> Backbone:
        if mode:
            self._weights.forget()
        return super().train(mode)

    def _run_grouped(self, tokens: TokenBatch) -> Tensor:
        """Runs groups of sequences of similar length."""
        groups = group_lengths(tokens.mask.sum(1).tolist())
        if len(groups) == 1:
            return self._run(tokens)
        width = tokens.ids.size(1)
        order = torch.tensor([row for rows in groups for row in rows])
        parts = [tokens.select(rows) for rows in order.split([len(rows) for rows in groups])]
        outputs = [self._run(part, words) for part, words in zip(parts, self._embed_words(parts), strict=True)]
        padded = torch.cat([F.pad(part, (0, 0, 0, width - part.size(1))) for part in outputs])
        return padded[order.argsort()]

    def _embed_words(self, parts: Sequence[TokenBatch]) -> Sequence[Tensor | None]:
        """The word embeddings of each part, if trained: one lookup makes one gradient of the table's size."""
        table = self.model.get_input_embeddings()
        if not (torch.is_grad_enabled() and isinstance(table, nn.Embedding) and table.weight.requires_grad):
            return [None] * len(parts)
        words = table(torch.cat([part.ids.flatten() for part in parts])).split([part.ids.numel() for part in parts])
        return [part_words.view(*part.ids.shape, -1) for part_words, part in zip(words, parts, strict=True)]

    def resize(self, vocabulary_size: int) -> bool:
        """Grows the embedding table to the vocabulary's size; True if it had to."""
        words: Any = self.model.get_input_embeddings()
        if vocabulary_size <= words.num_embeddings:
            return False
        size, mean = words.num_embeddings, words.weight.detach().mean(0)
        self.model.resize_token_embeddings(vocabulary_size, mean_resizing=False)
        words = self.model.get_input_embeddings()
        with torch.no_grad():  # transformers draws around the mean: two loads would differ
            words.weight[size:] = mean
        return True

    def get_embeddings(self) -> nn.Module:
        """The embedding block: words, positions, segments and their normalisation."""
        embeddings = getattr(self.model, "embeddings", None)
        return embeddings if isinstance(embeddings, nn.Module) else self.model.get_input_embeddings()

    def get_layers(self) -> nn.ModuleList:
        """The transformer layers, first to last. ConfigError if they share weights, as in ALBERT."""
        if (layers := self._find_layers()) is None:
            raise ConfigError(
                f"the layers of a {self.model.config.model_type} model cannot be trained separately: train all of them",
                argument="fine_tuned",
            )
        return layers

    def _find_layers(self) -> nn.ModuleList | None:
        count = int(self.model.config.num_hidden_layers)
        lists = (module for module in self.model.modules() if isinstance(module, nn.ModuleList))
        return next((layers for layers in lists if len(layers) == count), None)
