"""Runs MPNet packed, with our attention: it adds a bias to each score, by head and distance of the two tokens.

transformers' MPNet computes attention in its layers, eagerly and padded (Song et al., "MPNet", 2020; the distances are
bucketed as in Raffel et al., 2020, Section 2.1). All layers and sequences share one bias.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MPNetModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from polyencoder.modeling.cpu.attention import apply_attention, combine_bias
from polyencoder.modeling.packing import Packing
from polyencoder.modeling.tracing import is_traced
from polyencoder.modeling.varlen import AttentionOptions


def make_packable(model: PreTrainedModel) -> PreTrainedModel:
    """Converts an MPNet so that it can be packed, with its modules and their names; other models are unchanged."""
    if model.config.model_type != "mpnet":
        return model
    original: Any = model
    with torch.device("meta"):
        ours = _PackableMPNet(original.config, add_pooling_layer=False)
    ours.embeddings, ours.encoder = original.embeddings, original.encoder
    ours.set_attn_implementation("sdpa")
    ours.train(model.training)
    return ours


class _PackableMPNet(MPNetModel):
    _supports_sdpa = True
    _supports_attention_backend = True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        packing: Packing | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """transformers' arguments, and a packing: then the inputs are its row [1, tokens], and the mask is unused."""
        hidden = self.embeddings(input_ids=input_ids, position_ids=position_ids, inputs_embeds=inputs_embeds)
        longest = hidden.size(1) if packing is None else int(packing.positions.max()) + 1
        bias = self.encoder.compute_position_bias(hidden.new_empty(1, longest))[0]
        mask = None if packing is not None or attention_mask is None else attention_mask[:, None, None].bool()
        for layer in self.encoder.layer:
            hidden = _apply_layer(layer, hidden, bias, mask, packing)
        return BaseModelOutput(last_hidden_state=hidden)


def _apply_layer(layer: Any, hidden: Tensor, bias: Tensor, mask: Tensor | None, packing: Packing | None) -> Tensor:
    """One transformer layer, normalised after each of its two parts: [batch, length, dim] -> the same."""
    block: Any = layer.attention
    projections = block.attn
    kind = hidden.device.type  # cast as autocast would: once, not for each of the products
    cast = hidden.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden
    q, k, v = (
        project(cast).unflatten(-1, (projections.num_attention_heads, -1)).transpose(1, 2)
        for project in (projections.q, projections.k, projections.v)
    )
    dropout = projections.dropout.p if projections.training else 0.0
    if packing is not None:
        attended = packing.attend(q, k, v, AttentionOptions(dropout, bias=bias))
    elif q.device.type == "cpu" and not is_traced():
        attended = apply_attention(q, k, v, attn_mask=mask, dropout_p=dropout, bias=bias).transpose(1, 2)
    else:
        mask = combine_bias(bias.to(q.dtype), mask)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2)
    attended = block.LayerNorm(block.dropout(projections.o(attended.flatten(2))) + hidden)
    return layer.output(layer.intermediate(attended), attended)
