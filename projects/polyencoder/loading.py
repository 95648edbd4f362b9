"""Loads a ranker's encoder from a model folder, a model file, ONNX graphs or a pre-trained encoder."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from polyencoder.checks import check_choice, check_device
from polyencoder.config import Backend, WeightDtype
from polyencoder.encoding.encoder import Encoder
from polyencoder.encoding.graph_files import DESCRIPTION, Precision
from polyencoder.encoding.graphs import GraphEncoder, find_graphs_folder
from polyencoder.errors import ConfigError
from polyencoder.packages import is_installed, require
from polyencoder.storage.names import MODEL_FILES

if TYPE_CHECKING:
    import torch

    from polyencoder.encoding.torch_encoder import TorchEncoder
    from polyencoder.modeling.build import Parts

_log = logging.getLogger(__name__)


def load_encoder(
    name: str | os.PathLike[str],
    *,
    backend: Backend = "torch",
    device: torch.device | str | None = None,
    dtype: WeightDtype = "float32",
    threads: int = 0,
) -> tuple[Path, Encoder]:
    """Loads an encoder, with the path that it comes from; see `Ranker.from_pretrained`."""
    if not isinstance(name, (str, os.PathLike)):
        raise ConfigError(f"a model's name must be a text or a path, got {name!r:.60} ({type(name).__name__})")
    check_choice("backend", backend, get_args(Backend))
    check_choice("dtype", dtype, get_args(WeightDtype))
    if backend != "torch":
        if dtype != "float32":
            raise ConfigError(f"dtype is {dtype!r}, but backend {backend} has its own dtype; leave it out")
        precision: Precision = "int8" if backend == "onnx-int8" else "float32"
        path = find_graphs_folder(name, precision=precision)
        return path, GraphEncoder.open(path, precision=precision, threads=threads, device=device)
    if not is_installed("torch") and os.path.isfile(os.path.join(name, DESCRIPTION)):
        raise ConfigError(
            f"{os.fspath(name)}: torch is not installed; the folder's ONNX graphs need none: load it with backend onnx",
            argument="backend",
        )
    require("torch")
    from polyencoder.encoding.torch_encoder import TorchEncoder

    if device is not None:
        check_device(device)
    path, parts = _load_parts(name)
    encoder = TorchEncoder(*parts, device=device)
    cast_weights(encoder, dtype)
    return path, encoder


def _load_parts(name: str | os.PathLike[str]) -> tuple[Path, Parts]:
    """Loads a torch model and its tokenizer."""
    from polyencoder.checkpoint import holds_encoder, load_folder, load_model_file
    from polyencoder.hub.resolve import download_files, exists
    from polyencoder.importing import import_parlai, is_parlai_model
    from polyencoder.modeling.build import from_encoder
    from polyencoder.modeling.sentence_encoder import read_architecture

    if holds_encoder(name):
        architecture = read_architecture(name)
        if architecture == "bi":
            _log.warning(f"{os.fspath(name)} is an encoder: it ranks as a bi-encoder without training")
        shares = {"share_encoders": architecture == "bi"}
        return Path(name), from_encoder(name, architecture, text={}, separator=None, config=shares, trained=False)
    path = Path(name) if exists(name) else download_files(name, MODEL_FILES)
    if path.is_file():
        return path, (import_parlai if is_parlai_model(path) else load_model_file)(path)
    return path, load_folder(path)


def cast_weights(encoder: TorchEncoder, dtype: WeightDtype) -> None:
    """Casts the weights of the model's encoders to `dtype`; the fingerprints still describe the loaded weights."""
    if dtype == "float32":
        return
    import torch

    from polyencoder.encoding.fingerprint import compute_candidate_fingerprint
    from polyencoder.storage.digests import compute_weights_fingerprint

    model, backbones = encoder.model, encoder.model.backbones
    if not backbones:
        raise ConfigError(f"dtype is {dtype!r}, but a {model.title} has its own dtype; leave it out")
    if dtype == "float16" and encoder.device.type == "cpu":
        raise ConfigError("dtype 'float16' needs a GPU; on a CPU 'bfloat16' may be faster than 'float32'")
    if model.has_vectors:
        model.candidate_fingerprint = compute_candidate_fingerprint(model, encoder.text)
    state = model.state_dict()
    model.weights_fingerprints = {
        kind: compute_weights_fingerprint(state, dtype=kind) for kind in get_args(WeightDtype)
    }
    for backbone in backbones:
        backbone.cast_weights(getattr(torch, dtype))
