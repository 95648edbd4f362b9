"""The last layer of a BERT where only the outputs of start tokens are asked for, as the reduction `first` does.

Keys and values are those of all tokens. Queries, attention's output, the feed-forward network and the normalisations
are needed of the start tokens alone: five sixths of the layer's products are not computed, in an encoder of six layers
a seventh of all.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from polyencoder.modeling.packing import Blocks, Packing

__all__ = ["LastLayer"]

_PARTS = {"attention", "intermediate", "output"}
_OWN = {"query", "key", "value", "dropout"}


class LastLayer(nn.Module):
    """Takes the place of a layer of transformers' BERT or its kin, whose parts, and their names, it has."""

    attention: Any
    intermediate: Any
    output: Any

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name in sorted(_PARTS):
            self.register_module(name, layer.get_submodule(name))

    @property
    def training(self) -> bool:
        """That of its parts: it may come in while they are in another mode for a moment, in which it must not stay."""
        return bool(self.attention.training)

    @training.setter
    def training(self, mode: bool) -> None:
        pass

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether it has a BERT's parts, and no others. What they compute has to be tried."""
        own = getattr(getattr(layer, "attention", None), "self", None)
        parts = {name for name, _ in layer.named_children()}
        return parts == _PARTS and isinstance(own, nn.Module) and {name for name, _ in own.named_children()} == _OWN

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *others: Any,
        packing: Packing | None = None,
        first_only: bool = False,
        **options: Any,
    ) -> Tensor:
        """[batch, length, dim] -> the same; of a row of blocks with `first_only` [1, sequences, dim], in its order."""
        if first_only and isinstance(packing, Blocks):
            attended = self._of_first(hidden_states, packing)
        else:
            attended, _ = self.attention(hidden_states, attention_mask, packing=packing, **options)
        output: Tensor = self.output(self.intermediate(attended), attended)
        return output

    def _of_first(self, row: Tensor, packing: Blocks) -> Tensor:
        own = self.attention.self
        first = row[:, packing.starts]
        query, key, value = (
            project(inputs).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
            for project, inputs in ((own.query, first), (own.key, row), (own.value, row))
        )
        attended = packing.attend_first(query, key, value, scale=own.scaling)
        output: Tensor = self.attention.output(attended.flatten(2), first)
        return output
