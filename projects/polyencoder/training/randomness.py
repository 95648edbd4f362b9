"""Seeds, saves and restores the random generators of training together."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002, the generator that others' code draws from
    torch.manual_seed(seed)


def get_random_state(generator: random.Random | None = None) -> dict[str, Any]:
    """The state of all generators, and of the caller's, as tensors, numbers and texts."""
    name, keys, position, has_gauss, gauss = cast(tuple[Any, ...], np.random.get_state())  # noqa: NPY002
    return {
        "python": _pack_state(random),
        "numpy": (str(name), torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "agent": None if generator is None else _pack_state(generator),
    }


def restore_random_state(state: dict[str, Any], generator: random.Random | None = None) -> None:
    """Restores the state of `get_random_state`."""
    _unpack(state["python"], random)
    name, keys, *others = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *others))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():  # another machine's GPU states do not fit
        torch.cuda.set_rng_state_all(state["cuda"])
    if generator is not None:
        _unpack(state["agent"], generator)


def _pack_state(generator: Any) -> tuple[int, torch.Tensor, float | None]:
    version, keys, gauss = generator.getstate()
    return version, torch.tensor(keys), gauss


def _unpack(state: tuple[int, torch.Tensor, float | None], generator: Any) -> None:
    version, keys, gauss = state
    generator.setstate((version, tuple(keys.tolist()), gauss))
