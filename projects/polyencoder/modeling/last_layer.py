"""Computes a BERT's last layer for start tokens only, for the reduction `first`.

Keys and values are computed for all tokens; queries, attention output, feed-forward network and normalisations for
start tokens only. This saves five sixths of the layer's matrix products, a seventh of all in an encoder of six layers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from polyencoder.modeling.packing import Blocks, Packing

_PARTS = {"attention", "intermediate", "output"}
_ATTENTION_PARTS = {"query", "key", "value", "dropout"}


class LastLayer(nn.Module):
    """Replaces a layer of transformers' BERT or a similar model, with the same submodule names."""

    attention: Any
    intermediate: Any
    output: Any

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name in sorted(_PARTS):
            self.register_module(name, layer.get_submodule(name))

    @property
    def training(self) -> bool:
        """The mode of its parts: it is built while these are temporarily in evaluation mode."""
        return bool(self.attention.training)

    @training.setter
    def training(self, mode: bool) -> None:
        pass

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether a layer has exactly a BERT layer's submodules. Equality of outputs is checked separately."""
        attention = getattr(getattr(layer, "attention", None), "self", None)
        parts = {name for name, _ in layer.named_children()}
        return (
            parts == _PARTS
            and isinstance(attention, nn.Module)
            and {name for name, _ in attention.named_children()} == _ATTENTION_PARTS
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *arguments: Any,
        packing: Packing | None = None,
        first_only: bool = False,
        **options: Any,
    ) -> Tensor:
        """[batch, length, dim] -> the same; [1, sequences, dim] for a packed row with `first_only`."""
        if first_only and isinstance(packing, Blocks):
            attended = self._compute_first(hidden_states, packing)
        else:
            attended, _ = self.attention(hidden_states, attention_mask, packing=packing, **options)
        return self.output(self.intermediate(attended), attended)

    def _compute_first(self, row: Tensor, packing: Blocks) -> Tensor:
        attention = self.attention.self
        first = row[:, packing.starts]
        query, key, value = (
            project(inputs).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
            for project, inputs in ((attention.query, first), (attention.key, row), (attention.value, row))
        )
        attended = packing.attend_first(query, key, value, scale=attention.scaling)
        return self.attention.output(attended.flatten(2), first)
