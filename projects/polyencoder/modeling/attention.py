"""Chooses the attention implementation: registers ours with transformers under a name.

Models that use transformers' `AttentionInterface` call it in each layer. With the keyword argument `packing`, sequences
are packed in a row, and the packing computes attention within each. Otherwise transformers' `sdpa` computes attention,
on a CPU with a faster kernel and a smaller mask.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils

from polyencoder.modeling.cpu.attention import apply_attention
from polyencoder.modeling.packing import Packing
from polyencoder.modeling.tracing import is_traced
from polyencoder.modeling.varlen import AttentionOptions

NAME = "polyencoder"
"""The value of a configuration's `_attn_implementation`."""

# From transformers 5.0: the mask function of bidirectional attention
PADDING_ALONE = getattr(masking_utils, "bidirectional_mask_function", None)

# Options that plain attention can ignore; with any other, transformers' `sdpa` runs.
_IGNORED_OPTIONS = {"deterministic", "position_ids", "sliding_window"}


def use_our_attention(model: PreTrainedModel) -> None:
    """Switches `model` from transformers' `sdpa`, if it uses that, to the implementation registered here."""
    if model.config._attn_implementation == "sdpa" and getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(NAME)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values [batch, heads, length, dim] -> [batch, length, heads, dim], and no weights."""
    if packing is not None:  # the mask is unused
        settings = AttentionOptions(dropout, scaling, options.get("sliding_window"))
        return packing.attend(query, key, value, settings), None
    used = {name for name, value in options.items() if value is not None and value is not False} - _IGNORED_OPTIONS
    is_plain = query.size(1) == key.size(1) and not getattr(module, "is_causal", False) and not used
    if query.device.type != "cpu" or is_traced() or not is_plain:
        return AttentionInterface()["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    attended = apply_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling)
    return attended.transpose(1, 2), None


def _mask(**options: Any) -> Tensor | None:
    """The attention mask: on a CPU [batch, 1, 1, length] for padding, which saves a tiny model a tenth of its time."""
    mask: Tensor | None = options.get("attention_mask")
    if (
        mask is not None
        and mask.dim() == 2
        and mask.device.type == "cpu"
        and options["mask_function"] is PADDING_ALONE
        and not is_traced()
    ):
        return None if bool(mask.all()) else mask[:, None, None].bool()
    return AttentionMaskInterface()["sdpa"](**options)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
