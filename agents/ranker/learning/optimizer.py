"""Parameter groups with and without weight decay: biases and layer norms have none."""

from __future__ import annotations

from typing import Any

from parlai.core.opt import Opt
from torch import nn

from polyencoder.errors import ConfigError
from polyencoder.training.optimizer import FUSED
from polyencoder.training.optimizer import parameter_groups as matrices_and_others

ADAMW_DECAY = 0.01  # Section 5.1 of the poly-encoder paper: Adam with decay 0.01, Adamax without


# What `--optimizer` offers, as everything in torch.optim, and no ranker can learn with
_UNUSABLE = {
    "lbfgs": "it computes the loss several times for each update, which ParlAI's training loop does not",
    "muon": "it takes matrices alone, and a ranker has biases and layer norms too",
    "optimizer": "it is what the others are made of, and none itself",
    "sparseadam": "it takes sparse gradients alone, and a ranker's are dense",
}


def check_optimizer(opt: Opt) -> None:
    """Raise ConfigError for an optimizer that cannot train a ranker."""
    name = opt["optimizer"]
    if name in _UNUSABLE:
        raise ConfigError(f"--optimizer {name} cannot train a ranker: {_UNUSABLE[name]}. Use adamw, adamax or sgd")


def parameter_groups(model: nn.Module, opt: Opt) -> list[dict[str, Any]]:
    """The parameters that learn, in groups for the optimizer: with weight decay, without, and clipped embeddings."""
    decay = opt.get("weight_decay")
    if decay is None:
        decay = ADAMW_DECAY if opt["optimizer"] == "adamw" else 0.0
    groups = matrices_and_others(model, weight_decay=decay, embedding_clip=opt.get("embedding_clip") or None)
    if opt["optimizer"] == "adamw":  # ParlAI gives these to its other Adams only
        for group in groups:
            group["betas"], group["eps"] = tuple(opt.get("betas", (0.9, 0.999))), opt.get("adam_eps", 1e-8)
    if opt["optimizer"] == "adadelta" and opt.get("adadelta_eps") is not None:
        for group in groups:
            group["eps"] = opt["adadelta_eps"]
    if opt["optimizer"] in FUSED:
        for group in groups:
            group["fused"] = True
    return groups
