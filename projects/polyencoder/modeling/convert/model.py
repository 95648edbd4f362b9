"""`ConveRT`: a shared encoder, and separate feed-forward networks for contexts and responses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from polyencoder.config import ContextVector, ConvertConfig, RankerConfig
from polyencoder.errors import ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.capabilities import ConvertCapabilities
from polyencoder.modeling.convert.blocks import Block, Embeddings
from polyencoder.modeling.convert.outputs import AnnealedScale, FeedForward, Reduction
from polyencoder.modeling.convert.quantization import (
    QuantizationAwareEmbedding,
    QuantizedEmbedding,
    call_with_rounded_parameters,
    round_parameters,
)
from polyencoder.modeling.convert.rows import PackedRows
from polyencoder.modeling.cpu.modules import replace_layers
from polyencoder.modeling.export_steps import BothTextsStep, CandidatesStep, Step
from polyencoder.scoring import ContextEncoding
from polyencoder.storage.names import CANDIDATES, CONTEXT
from polyencoder.text.tokens import TokenBatch

CONTEXT_VECTORS: tuple[ContextVector, ...] = get_args(ContextVector)
"""The vectors of the whole context, the last utterance and the earlier ones: h_xz, h_x and h_z of Figure 2."""

QUANTIZED_LOSS_SCALE = 128.0
"""For a quantized ConveRT: "the final loss is scaled by 128" (Section 2.1)."""

T = TypeVar("T")


def split_contexts(tokens: TokenBatch, *, separator: int) -> tuple[TokenBatch, TokenBatch, Tensor]:
    """Splits contexts at the first separator (`TextEncoder`, truncation `recent_first`).

    Returns:
        The last utterances [batch, length]; the extra contexts [rows, length], for contexts that have one; and these
        contexts' rows, [rows].
    """
    separators = (tokens.ids == separator) & tokens.mask
    behind = separators.cumsum(1) > 0
    last = TokenBatch(tokens.ids, tokens.mask & ~behind)
    earlier = tokens.mask & behind & ~separators
    rows = earlier.any(1).nonzero().squeeze(1)
    if not len(rows):
        return last, TokenBatch(tokens.ids[:0], tokens.mask[:0]), rows
    all_rows = torch.arange(len(tokens), device=tokens.ids.device)
    starts = separators[rows].int().argmax(1, keepdim=True) + 1
    lengths = earlier[rows].sum(1, keepdim=True)
    columns = torch.arange(int(lengths.max()), device=tokens.ids.device)
    ids = tokens.ids[rows].gather(1, (starts + columns).clamp(max=tokens.ids.size(1) - 1))
    return last.select(all_rows), TokenBatch(ids, columns < lengths), rows


class SharedEncoder(nn.Module):
    """Encodes a text as one vector, r_x or r_y (Figure 1), which transfers to other tasks."""

    def __init__(self, config: ConvertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config, limit=limit) for limit in config.attention_limits)
        self.reduction = Reduction(config.hidden_size, heads=config.reduction_heads, size=config.reduction_size)
        self.dim = config.reduction_heads * config.hidden_size

    def forward(self, tokens: TokenBatch) -> Tensor:
        """[batch, length] -> [batch, heads * dim]."""
        rows = PackedRows.from_mask_by_length(tokens.mask)
        return self.reduction(self.encode_tokens(tokens, rows), rows)

    def encode_tokens(self, tokens: TokenBatch, rows: PackedRows) -> Tensor:
        """One vector for each token: [tokens, dim]."""
        outputs: Tensor = self.embeddings(rows.take(tokens.ids), rows.positions)
        for block in self.blocks:
            outputs = block(outputs, rows)
        return outputs


class _History(nn.Module):
    """The feed-forward networks of a multi-context model: for extra contexts, and for the combined vector."""

    def __init__(self, dim: int, sizes: ConvertConfig) -> None:
        super().__init__()
        self.head = FeedForward(dim, sizes)
        self.combined_head = FeedForward(sizes.output_size, sizes)
        self.combined_skip = nn.Linear(sizes.output_size, sizes.output_size, bias=False) if sizes.skips else None
        if self.combined_skip is not None:
            nn.init.orthogonal_(self.combined_skip.weight)


class ConveRT(ConvertCapabilities, RankerModel):
    """ConveRT: scores are scaled cosines of context and response vectors (Section 2.1).

    A multi-context model (Section 2.2) also reads the utterances before the last one. Candidate vectors have length 1;
    the scale is applied to context vectors, so that an index does not depend on it. A quantized model has two forms
    with the same outputs: in training weights are float32 and fake-quantized (`quantization`); for inference, and on
    disk, embeddings are in 8 bits and other weights rounded to float16. `prepare_for_training` and
    `prepare_for_inference` convert between them.
    """

    def __init__(self, config: RankerConfig) -> None:
        super().__init__(config)
        sizes = self.sizes
        self.encoder = SharedEncoder(sizes)
        self.context_head = FeedForward(self.encoder.dim, sizes)
        self.response_head = FeedForward(self.encoder.dim, sizes)
        self.skip = nn.Linear(self.encoder.dim, sizes.output_size, bias=False) if sizes.skips else None
        if self.skip is not None:
            nn.init.orthogonal_(self.skip.weight)
        self.history = _History(self.encoder.dim, sizes) if sizes.multi_context else None
        self.scale = AnnealedScale(sizes.output_size, over=sizes.scale_batches)
        self.context_vector = "combined" if sizes.multi_context else None
        replace_layers(self)

    @property
    def sizes(self) -> ConvertConfig:
        assert self.config.convert is not None
        return self.config.convert

    def set_dropout(self, rate: float) -> None:
        """Sets the dropout after embeddings and attention."""
        self._resize(replace(self.sizes, dropout=rate))
        for part in self.modules():
            if isinstance(part, nn.Dropout):
                part.p = rate

    @property
    def is_for_inference(self) -> bool:
        """Whether the weights are quantized, and so cannot be trained."""
        return isinstance(self.encoder.embeddings.words, QuantizedEmbedding)

    def quantize(self, *, update: int = ConvertConfig.quantization_update) -> None:
        """Turns on quantization-aware training; the range of embeddings is updated every `update` batches."""
        self.prepare_for_training()
        self._resize(replace(self.sizes, quantized=True, quantization_update=update))
        words = self.encoder.embeddings.words
        if isinstance(words, nn.Embedding) and not isinstance(words, QuantizationAwareEmbedding):
            table = QuantizationAwareEmbedding(*words.weight.shape, device="meta")
            table = table.to_empty(device=words.weight.device).train(words.training)
            table.weight = words.weight
            table.update_range()
            self.encoder.embeddings.words = table

    def prepare_for_training(self) -> None:
        """Dequantizes the weights to float32, for training."""
        if isinstance(words := self.encoder.embeddings.words, QuantizedEmbedding):
            self.encoder.embeddings.words = words.dequantize()
            self.requires_grad_(True)

    def prepare_for_inference(self) -> None:
        """Quantizes the weights, for inference."""
        if isinstance(words := self.encoder.embeddings.words, QuantizationAwareEmbedding):
            round_parameters(self)
            self.encoder.embeddings.words = words.quantize()
            self.requires_grad_(False)

    def copy_for_saving(self) -> ConveRT:
        """The model to save: itself, or for quantization-aware training a copy for inference."""
        if not self.sizes.quantized or self.is_for_inference:
            return self
        stored = copy.deepcopy(self)
        stored.prepare_for_inference()
        return stored

    @property
    def loss_scale(self) -> float | None:
        return QUANTIZED_LOSS_SCALE if self.sizes.quantized else None

    def explain_untrainable(self) -> str | None:
        if self.is_for_inference:
            return "these weights are rounded for inference: call `prepare_for_training` of the model to train it"
        return None

    def explain_too_short(self, batches: int) -> str | None:
        return self.scale.explain_low(batches)

    def continue_with(self, settings: Mapping[str, Any], *, origin: str) -> None:
        """Applies `quantization_aware`, `quantization_update` and `dropout`."""
        aware, update = settings.get("quantization_aware"), settings.get("quantization_update")
        if self.sizes.quantized and aware is False:
            raise ConfigError(
                f"{origin} is quantized, which cannot be undone: leave quantization_aware out",
                argument="quantization_aware",
            )
        if aware or self.sizes.quantized:
            self.quantize(update=update or self.sizes.quantization_update)
        elif update is not None:
            raise ConfigError(f"{origin} is not quantized: add quantization_aware", argument="quantization_update")
        if settings.get("dropout") is not None:
            self.set_dropout(settings["dropout"])

    def match_quantization(self, weights: Mapping[str, Tensor]) -> None:
        if any(weight.dtype == torch.uint8 and weight.dim() == 2 for weight in weights.values()):
            self.prepare_for_inference()

    def get_state_dict_to_save(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The weights to save; for a quantized model 8-bit embeddings, their range in float32, the rest in float16."""
        if not self.sizes.quantized:
            return super().get_state_dict_to_save(dtype)
        if dtype == torch.bfloat16:
            raise ConfigError("a quantized convert model is stored in 8 bits and float16: leave dtype out")
        stored = self.copy_for_saving()
        weights = {name: parameter.detach().half() for name, parameter in stored.named_parameters()}
        return {name: weights.get(name, tensor.detach()) for name, tensor in stored.state_dict().items()}

    def export_steps(self) -> dict[str, Step]:
        if self.history is None:
            return super().export_steps()
        separator = self.sizes.separator_id
        return {
            CONTEXT: BothTextsStep(self, separator=separator),
            CANDIDATES: CandidatesStep(self, separator=separator),
        }

    def describe(self) -> dict[str, str]:
        sizes = self.sizes
        return {
            "architecture": self.title,
            "encoder": f"{len(sizes.attention_limits)} layers, {sizes.hidden_size} dimensions, "
            f"{sizes.vocab_size:,} tokens",
            "scores": f"cosines times {float(self.scale()):.4g}",
        }

    def describe_weights(self, dtype: str) -> str:
        if not self.sizes.quantized:
            return super().describe_weights(dtype)
        words = self.encoder.embeddings.words.weight.numel()
        numbers = sum(parameter.numel() for parameter in self.parameters()) + (words if self.is_for_inference else 0)
        return f"{numbers:,}: {words:,} of the embeddings stored in 8 bits, the others in float16"

    def after_batch(self) -> None:
        """Advances the scale and, every `quantization_update` batches, updates the embeddings' range."""
        self.scale.advance()
        words, batches = self.encoder.embeddings.words, int(self.scale.batches)
        if isinstance(words, QuantizationAwareEmbedding) and batches % self.sizes.quantization_update == 0:
            words.update_range()

    def _resize(self, sizes: ConvertConfig) -> None:
        self.config = replace(self.config, convert=sizes)

    def _call_rounded(self, method: Callable[[TokenBatch], T], tokens: TokenBatch) -> T:
        """Calls a method, with fake-quantized weights in quantization-aware training."""
        if self.sizes.quantized and not self.is_for_inference:
            return call_with_rounded_parameters(self, method, tokens)
        return method(tokens)

    @property
    def dim(self) -> int:
        return self.sizes.output_size

    def pooled(self, tokens: TokenBatch) -> Tensor:
        """r_x of Figure 1, the reduced sequence before feed-forward 2, of the last utterance: [batch, heads * dim].

        The paper's intent classifiers use it: "We also experimented with later h_x encodings on the input side,
        but stronger results were observed with r_x" (Section 3).
        """
        return self._call_rounded(self._reduce, tokens)

    def _reduce(self, tokens: TokenBatch) -> Tensor:
        if self.history is not None:
            tokens, _, _ = split_contexts(tokens, separator=self.sizes.separator_id)
        return self.encoder(tokens)

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        return self.split_objectives(self.encode_objectives(tokens))[self.context_vector or ""]

    def encode_objectives(self, tokens: TokenBatch) -> ContextEncoding:
        """Encodes contexts; for a multi-context model as three codes, `CONTEXT_VECTORS`, the last masked if empty.

        Section 2.2: "1) ranking responses given the immediate context [...], 2) ranking responses given only the extra
        (non-immediate) contexts, and 3) ranking responses given the averaged representation". From PolyAI's graph: the
        average goes through its own feed-forward network; h_z of a single turn is 0.
        """
        return self._call_rounded(self._encode_contexts, tokens)

    def _encode_contexts(self, tokens: TokenBatch) -> ContextEncoding:
        if self.history is None:
            vectors = self.context_head(self.encoder(tokens), self.skip)
            return ContextEncoding((vectors * self.scale()).unsqueeze(1))
        last, earlier, rows = split_contexts(tokens, separator=self.sizes.separator_id)
        immediate: Tensor = self.context_head(self.encoder(last), self.skip)
        extra = torch.zeros_like(immediate)
        if len(rows):
            extra = extra.index_copy(0, rows, self.history.head(self.encoder(earlier), self.skip))
        has_extra = torch.zeros(len(tokens), dtype=torch.bool, device=rows.device).index_fill(0, rows, True)
        return self._encode_both(immediate, extra, has_extra)

    def encode_texts(self, last: TokenBatch, earlier: TokenBatch) -> ContextEncoding:
        """Like `encode_objectives`, from the split texts [batch, length], the second maybe all padding; for export."""
        assert self.history is not None
        ids, mask = torch.cat([last.ids, earlier.ids]), torch.cat([last.mask, earlier.mask])
        reduced = self.encoder(TokenBatch(ids, mask)).unflatten(0, (2, -1))
        has_extra = earlier.mask.any(1)
        extra = self.history.head(reduced[1], self.skip).masked_fill(~has_extra.unsqueeze(1), 0)
        return self._encode_both(self.context_head(reduced[0], self.skip), extra, has_extra)

    def _encode_both(self, immediate: Tensor, extra: Tensor, has_extra: Tensor) -> ContextEncoding:
        assert self.history is not None
        combined = self.history.combined_head((immediate + extra) / 2, self.history.combined_skip)
        vectors = torch.stack([combined, immediate, extra], dim=1) * self.scale()
        return ContextEncoding(
            vectors, torch.stack([torch.ones_like(has_extra), torch.ones_like(has_extra), has_extra], dim=1)
        )

    def split_objectives(self, encoded: ContextEncoding) -> Mapping[str, ContextEncoding]:
        if encoded.mask is None:  # one vector, or no contexts
            return {"": encoded}
        codes, mask = encoded.vectors.split(1, dim=1), encoded.mask[:, 2:]  # extra is masked without earlier turns
        masks = (None, None, mask)
        return {name: ContextEncoding(*pair) for name, *pair in zip(CONTEXT_VECTORS, codes, masks, strict=True)}

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        return self._call_rounded(self._encode_candidates, tokens)

    def _encode_candidates(self, tokens: TokenBatch) -> Tensor:
        return self.response_head(self.encoder(tokens), self.skip)

    def candidate_modules(self) -> list[nn.Module]:
        return [self.encoder, self.response_head, *([] if self.skip is None else [self.skip])]
