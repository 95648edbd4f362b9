"""The files of model folders, by their paths in them."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor

from polyencoder.checkpoint import read_folder_config, read_stored_weights
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.layout import build_layout
from polyencoder.storage.names import CONFIG, MODULE_WEIGHTS, TOKENIZER, WEIGHTS

OURS = (CONFIG, WEIGHTS, TOKENIZER)


def files_in(folder: Path) -> list[str]:
    """All files, hidden ones too, except locks."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def files_of(model: RankerModel, *more: str) -> list[str]:
    """The files of a saved model, and `more`."""
    arranged = build_layout(model.config)
    files = {*OURS, *arranged.files, *more}
    for module in arranged.modules:
        names = {*module.files, *([TOKENIZER] if module.has_tokenizer else [])}
        names |= {MODULE_WEIGHTS} if module.tensors else set()
        files |= {f"{module.folder}/{name}".lstrip("/") for name in names}
    return sorted(files)


def weights_in(folder: Path) -> dict[str, Tensor]:
    """All weights of a model folder, by their names in the ranker."""
    return read_stored_weights(folder, read_folder_config(folder))


def without_digests(folder: Path) -> None:
    """Makes a model folder one whose files another program may have written."""
    weights = safetensors.torch.load_file(folder / WEIGHTS)
    safetensors.torch.save_file(weights, folder / WEIGHTS)
