"""Pre-training heads stored with an encoder: initialises a cross-encoder's last layer."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.finite import check_finite
from polyencoder.storage.safe_load import read_weights

HEADS = "heads.safetensors"


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
    return bool(_read_next_utterance(model, folder))


def start_from_heads(model: RankerModel, folder: str | os.PathLike[str]) -> None:
    """Copies the folder's next-utterance head, if any, into a cross-encoder that scores by the first output."""
    if (weights := _read_next_utterance(model, folder)) and model.next_utterance_head is not None:
        model.next_utterance_head.load_state_dict(weights)


def _read_next_utterance(model: RankerModel, folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The weights of the linear layer that predicts whether a response follows; empty without a matching one."""
    if (layer := model.next_utterance_head) is None:
        return {}
    heads, expected = read_heads(folder), layer.state_dict()
    weights = {name: heads[key] for name in expected if (key := f"next_utterance.{name}") in heads}
    fits = weights.keys() == expected.keys() and all(weights[name].shape == expected[name].shape for name in expected)
    return weights if fits else {}
