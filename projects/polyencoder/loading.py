"""Loads a ranker's model and tokenizer from a model folder, a model file, ONNX graphs or an encoder."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import get_args

import torch

from polyencoder.checkpoint import holds_encoder, load_folder, load_model_file
from polyencoder.checks import check_choice, checked_device
from polyencoder.config import Backend, WeightDtype
from polyencoder.encoding.encode import candidate_fingerprint
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import ConfigError
from polyencoder.export.onnx.files import Precision
from polyencoder.hub.resolve import downloaded, exists
from polyencoder.importing import import_parlai, is_parlai_model
from polyencoder.modeling.build import Parts, from_encoder
from polyencoder.modeling.sentence_encoder import own_architecture
from polyencoder.storage.digests import weights_fingerprint
from polyencoder.storage.names import MODEL_FILES

_log = logging.getLogger(__name__)


def load_parts(
    name: str | os.PathLike[str], *, backend: Backend, device: torch.device | str | None
) -> tuple[Path, Parts]:
    """Loads a ranker's model and text encoder, with the path they come from; see `Ranker.from_pretrained`."""
    if not isinstance(name, (str, os.PathLike)):
        raise ConfigError(f"a model's name must be a text or a path, got {name!r:.60} ({type(name).__name__})")
    check_choice("backend", backend, get_args(Backend))
    if backend != "torch":  # onnxruntime has its own devices
        from polyencoder.export.onnx.exported import graphs_folder  # optional dependency
        from polyencoder.export.onnx.runtime import load_onnx

        precision: Precision = "int8" if backend == "onnx-int8" else "float32"
        path = graphs_folder(name, precision=precision)
        return path, load_onnx(path, precision=precision, device=device)
    if device is not None:
        checked_device(device)
    if holds_encoder(name):
        own = own_architecture(name)
        if own == "bi":
            _log.warning(f"{os.fspath(name)} is an encoder: it ranks as a bi-encoder without training")
        shares = {"share_encoders": own == "bi"}
        return Path(name), from_encoder(name, own, text={}, separator=None, config=shares, trained=False)
    path = Path(name) if exists(name) else downloaded(name, MODEL_FILES)
    if path.is_file():
        return path, (import_parlai if is_parlai_model(path) else load_model_file)(path)
    return path, load_folder(path)


def cast_encoders(ranker: Scorer, dtype: WeightDtype, *, backend: Backend) -> None:
    """Casts the encoders' weights to `dtype`; the fingerprints stay those of the loaded weights."""
    check_choice("dtype", dtype, get_args(WeightDtype))
    if dtype == "float32":
        return
    model, encoders = ranker.model, ranker.model.backbones
    if backend != "torch" or not encoders:
        what = f"backend {backend}" if backend != "torch" else f"a {model.title}"
        raise ConfigError(f"dtype is {dtype!r}, but {what} has its own dtype; leave it out")
    if dtype == "float16" and ranker.device.type == "cpu":
        raise ConfigError("dtype 'float16' needs a GPU; on a CPU 'bfloat16' may be faster than 'float32'")
    if model.has_vectors:
        model.candidate_fingerprint = candidate_fingerprint(model, ranker.text)
    state = model.state_dict()
    model.weights_fingerprints = {kind: weights_fingerprint(state, dtype=kind) for kind in get_args(WeightDtype)}
    for encoder in encoders:
        encoder.cast_weights(getattr(torch, dtype))
