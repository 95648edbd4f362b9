"""torch.compile for the encoders of a ranker."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import torch

from polyencoder.errors import ConfigError
from polyencoder.modeling.trainable import TrainableModel


def compile_encoders(model: TrainableModel, *, device: torch.device | str = "cpu") -> None:
    """Compiles the transformers in `model` on their first run.

    In place: parameter names and checkpoints are unchanged. Shapes are dynamic: other lengths are not recompiled.

    Raises:
        ConfigError: torch is too old, or triton or a C++ compiler is missing.
    """
    if not hasattr(torch.compiler, "is_exporting"):  # transformers calls it where it makes masks
        raise ConfigError(
            f"compiling needs torch 2.7 or later, this is {torch.__version__}: upgrade it, or do not compile",
            argument="compile",
        )
    if torch.device(device).type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "compiling on a GPU needs the package `triton`: pip install triton, or do not compile",
                argument="compile",
            )
    else:
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(compiler) is None:
            raise ConfigError(
                f"compiling needs a C++ compiler, but {compiler} is missing: install one (apt-get install g++), set "
                "the environment variable CXX, or do not compile",
                argument="compile",
            )
    for backbone in model.backbones:
        backbone.compile(dynamic=True)
