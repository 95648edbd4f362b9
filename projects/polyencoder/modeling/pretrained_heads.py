"""The heads that an encoder was pre-trained with, where its folder has them: a cross-encoder begins with one."""

from __future__ import annotations

import os
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from polyencoder.errors import CheckpointError
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.modeling.finite import check_finite

__all__ = ["HEADS", "read_heads", "start_from_heads"]

HEADS = "heads.safetensors"

NEXT_UTTERANCE = "next_utterance"
"""The linear layer that says whether a response follows, of the first output."""


def read_heads(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The heads in a pre-trained encoder's folder; none where it has no such file, or is no folder.

    Raises:
        CheckpointError: they are damaged, or not finite.
    """
    path = Path(folder) / HEADS
    if not path.is_file():
        return {}
    try:
        heads = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from None
    check_finite(heads.items(), origin=str(path))
    return heads


@torch.no_grad()
def start_from_heads(model: torch.nn.Module, folder: str | os.PathLike[str]) -> bool:
    """Give a cross-encoder of this encoder, which scores by the first output, the head for next utterances.

    Says whether there was one for it.
    """
    if not isinstance(model, CrossEncoder) or model.config.reduction != "first":
        return False
    heads, own = read_heads(folder), model.linear
    given = {name: heads.get(f"{NEXT_UTTERANCE}.{name}") for name in ("weight", "bias")}
    if any(tensor is None or tensor.shape != getattr(own, name).shape for name, tensor in given.items()):
        return False
    for name, tensor in given.items():
        assert tensor is not None
        getattr(own, name).copy_(tensor)
    return True
