"""Rescaling of a pre-trained encoder: outputs as large as BERT's, after pre-training without weight decay.

Such weights have grown, those of the last layer most, and the logits of an attention over outputs grow with the square
of the outputs: the softmax of a poly-encoder then gives nearly everything to one code, and learns little. Section 5.3
of Humeau et al. (ICLR 2020) therefore rescales the last layer so that its output deviates as much as BERT's. Here the
layer is unchanged and `RankerConfig.output_scaling` multiplies its outputs, which is the same function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.mode import in_evaluation
from polyencoder.text import TokenBatch

__all__ = ["BERT_OUTPUT_STD", "measured_scaling", "output_std"]

BERT_OUTPUT_STD = 0.5
"""The standard deviation of BERT's outputs, to the one digit that matters here.

The paper gives no number. A post-layer-norm encoder ends in a layer normalisation, whose outputs have a standard
deviation near the root mean square of its gains: 1 before training, less after it. Those outputs of bert-base-uncased
that the documentation of transformers prints for "Hello, my dog is cute" (36 numbers) have 0.46; all-MiniLM-L6-v2 has
0.43 on utterances of ConvAI2, with gains of 0.64.
"""


@torch.no_grad()
def output_std(model: RankerModel, contexts: TokenBatch, candidates: TokenBatch) -> float:
    """The standard deviation of what the transformers of a ranker give for these texts, before any scaling.

    Over all numbers of all outputs, each tower on its own kind of text; padding does not count.
    """
    if model.towers is None:
        raise ConfigError("only rankers around a backbone have outputs whose deviation can be measured")
    inputs = zip(model.towers, (contexts, candidates), strict=True)
    with in_evaluation(model):  # dropout would count as deviation
        outputs: list[Tensor] = [tower(tokens)[tokens.mask].float().flatten() for tower, tokens in inputs]
    return float(torch.cat(outputs).std())


def measured_scaling(model: RankerModel, contexts: TokenBatch, candidates: TokenBatch) -> float:
    """The `output_scaling` that gives a ranker's outputs the standard deviation of BERT's.

    Args:
        model: with the weights that it starts from.
        contexts, candidates: a batch or a few of the task that it is for. One batch is enough: a hundred tokens already
            give tens of thousands of numbers.

    Raises:
        ConfigError: the model gives its vectors length 1, so that the size of outputs means nothing.
        InputError: the outputs are all alike, or not finite: there is nothing to match.
    """
    if model.config.normalize:
        raise ConfigError(
            "output_scaling is auto, but normalize already gives vectors the length 1, whatever the size of outputs; "
            "give a number",
            argument="output_scaling",
        )
    deviation = output_std(model, contexts, candidates)
    if not 0 < deviation < float("inf"):
        raise InputError(
            f"output_scaling is auto, but the outputs have a standard deviation of {deviation}; give a number, or "
            "other weights to start from",
            argument="output_scaling",
        )
    return BERT_OUTPUT_STD / deviation
