"""From the reduced vector to the final one: feed-forward 2, of which each kind of text has its own."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from polyencoder.modeling.convert.blocks import activation, layer_norm
from polyencoder.modeling.convert.config import ConvertConfig

__all__ = ["FeedForward"]


class FeedForward(nn.Module):
    """Hidden layers with skip connections and layer normalisation, then a linear layer, then length 1 (Section 2.1).

    From PolyAI's graphs: the input is normalised; a hidden layer is a matrix without bias, the activation, a layer
    normalisation; the output has a projection of the raw input added and is normalised. That projection, `skip`, is
    one for contexts, extra contexts and responses, and is given. Whether a hidden layer has a skip of its own the
    graphs cannot tell, whose layers are of different sizes: here those do that have as many outputs as inputs, as
    all in the paper, which speaks of "skip connections".
    """

    def __init__(self, input_size: int, config: ConvertConfig) -> None:
        super().__init__()
        sizes = (input_size, *config.head_sizes)
        self.input_norm = layer_norm(input_size)
        self.layers = nn.ModuleList(nn.Linear(before, after, bias=False) for before, after in pairwise(sizes))
        self.norms = nn.ModuleList(layer_norm(size) for size in config.head_sizes)
        self.output = nn.Linear(sizes[-1], config.output_size, bias=False)
        self.output_norm = layer_norm(config.output_size)
        self.activation, self.skips = config.activation, config.skips
        for layer in (*self.layers, self.output):
            nn.init.orthogonal_(layer.weight)

    def forward(self, inputs: Tensor, skip: nn.Module | None) -> Tensor:
        """[batch, input_size] -> [batch, output_size], of length 1, in float32."""
        inputs = inputs.to(self.output.weight.dtype)
        hidden = self.input_norm(inputs)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            new = activation(layer(hidden), self.activation)
            hidden = norm(hidden + new if self.skips and new.shape == hidden.shape else new)
        outputs = self.output(hidden)
        if skip is not None:
            outputs = outputs + skip(inputs)
        return F.normalize(self.output_norm(outputs).float(), dim=-1, eps=1e-6)
