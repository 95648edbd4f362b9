"""Reads checkpoints of other projects as plain data, without running their code or importing their packages.

Beside the weights such a file holds options, meters and random states of its trainer. `torch.load` with
`weights_only=True` refuses every class that is not allowed, so known classes are replaced by `PlainObject`,
which stores their state without behaviour. Any other class or function is an error that names it.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyencoder.errors import CheckpointError
from polyencoder.storage.safe_load import Allowed, allowing, explain_not_loaded


class PlainObject:
    """Stand-in for an object of an unavailable class: its saved state, without behaviour."""

    state: Any = None

    def __new__(cls, *args: Any) -> PlainObject:
        return object.__new__(cls)

    def __init__(self, *args: Any) -> None:
        """Accepts any arguments of the real class."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


_RECORDS = {
    # arrays and numbers in options, metrics and word counts
    **dict.fromkeys(("numpy.core.multiarray", "numpy._core.multiarray"), ("_reconstruct", "scalar")),
    "numpy": ("ndarray", "dtype"),
    # meters of a training
    **dict.fromkeys(("fairseq.meters", "fairseq.logging.meters"), ("AverageMeter", "TimeMeter", "StopwatchMeter")),
    # options saved as objects instead of dictionaries
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.nodes": ("AnyNode", "StringNode", "IntegerNode", "FloatNode", "BooleanNode"),
    "typing": ("Any",),
}

# torch identifies a class by its name
_ALLOWED: list[Allowed] = [
    argparse.Namespace,
    collections.defaultdict,
    *(dict, list, int, float, bool, str),
    *(type(name, (PlainObject,), {"__module__": module}) for module, names in _RECORDS.items() for name in names),
]


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a `.pt` file onto the CPU. CheckpointError: missing, damaged, no dictionary, or it could run code."""
    name = os.fspath(path)
    try:
        with allowing(_ALLOWED):
            states = torch.load(name, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{name}: no such checkpoint") from None
    except Exception as error:  # the unpickler can raise any error for a damaged or foreign file
        if match := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise CheckpointError(
                f"{name}: holds {match[1]}, which is neither a tensor nor plain data, so it was not read; save a copy "
                "with only the weights, the options and the dictionary"
            ) from None
        raise CheckpointError(f"{name}: damaged, or not a checkpoint of torch ({explain_not_loaded(error)})") from None
    if not isinstance(states, dict):
        raise CheckpointError(f"{name}: holds {type(states).__name__}; a checkpoint is a dictionary of states")
    return states


def get_tensors(states: Mapping[str, Any], *keys: str) -> dict[str, Tensor]:
    """The state dict at the first of the keys that exists; empty if there is none, or its value is no state dict."""
    state = next((states[key] for key in keys if key in states), None)
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        return {}
    return state


def to_plain(value: Any) -> Any:
    """Converts a Namespace, omegaconf nodes, dictionaries or lists of options to dictionaries, lists and values."""
    if isinstance(value, argparse.Namespace):
        return to_plain(vars(value))
    if isinstance(value, PlainObject):
        state = value.state if isinstance(value.state, dict) else {}
        return to_plain(state.get("_content", state.get("_val")))
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    return value
