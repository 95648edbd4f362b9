"""Pre-training heads stored with an encoder: initialises a cross-encoder's last layer."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.finite import check_finite
from polyencoder.storage.safe_load import read_weights

HEADS = "heads.safetensors"

NEXT_UTTERANCE = "next_utterance"
"""The linear layer on the first output that predicts whether a response follows."""


def read_heads(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Reads the heads in a pre-trained encoder's folder, if any. CheckpointError: they are damaged, or not finite."""
    path = Path(folder) / HEADS
    if not path.is_file():
        return {}
    heads = read_weights(path)
    check_finite(heads.items(), origin=str(path))
    return heads


def begins_with_head(model: RankerModel, folder: str | os.PathLike[str]) -> bool:
    """Whether the folder has a next-utterance head for this model (a cross-encoder)."""
    return bool(_next_utterance(model, folder))


@torch.no_grad()
def start_from_heads(model: RankerModel, folder: str | os.PathLike[str]) -> None:
    """Copies the folder's next-utterance head, if any, into a cross-encoder that scores by the first output."""
    for parameter, value in _next_utterance(model, folder):
        parameter.copy_(value)


def _next_utterance(model: RankerModel, folder: str | os.PathLike[str]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of (model parameter, head tensor); empty without a matching head."""
    if (head := model.next_utterance_head) is None:
        return []
    heads = read_heads(folder)
    pairs = [(getattr(head, name), heads.get(f"{NEXT_UTTERANCE}.{name}")) for name in ("weight", "bias")]
    matching = [
        (parameter, value) for parameter, value in pairs if value is not None and value.shape == parameter.shape
    ]
    return matching if len(matching) == len(pairs) else []
