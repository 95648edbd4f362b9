"""torch.compile for the encoders of a ranker."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import torch

from polyencoder.errors import ConfigError
from polyencoder.modeling.base import TrainableModel

__all__ = ["compile_encoders"]


def compile_encoders(model: TrainableModel, *, device: torch.device | str = "cpu") -> None:
    """Have torch compile the transformers in `model` when they first run.

    In place: names of parameters, checkpoints and `model` itself stay the same. Lengths may change from batch to
    batch without compiling anew (`dynamic`).

    Raises:
        ConfigError: the machine has nothing to compile with.
    """
    if torch.device(device).type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "to compile needs the package `triton` on a GPU: pip install triton, or leave it out",
                argument="compile",
            )
    else:
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(compiler) is None:
            raise ConfigError(
                f"to compile needs a C++ compiler, and there is no {compiler}: install one (apt-get install g++), "
                "name it in the environment variable CXX, or do not compile",
                argument="compile",
            )
    for backbone in model.backbones:
        backbone.compile(dynamic=True)
