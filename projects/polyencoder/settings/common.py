"""Settings shared by several commands: the model, and how it runs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from polyencoder.config import Backend, WeightDtype
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.metadata import Without


@settings()
class RunningSettings(Settings):
    """Settings of a model's execution."""

    device: str | None = None
    """For example cpu or cuda:1 (default: CUDA if available)."""
    model_dtype: WeightDtype = "float32"
    """Precision of the encoder: bfloat16 is faster on machines that support it. Indexes and calibrations work with
    both."""
    backend: Backend = "torch"
    """The backend that runs the model: torch, or, for an exported folder, onnx or onnx-int8."""


@settings()
class RankerSettings(RunningSettings):
    """A ranker, and how it runs."""

    model: Annotated[str, Parameter(alias="-m")]
    """A model folder, a model file of parlai train_model, or a hub id."""


@settings()
class MakerSettings(RunningSettings):
    """The model that makes an index, or that made the vectors of one, and how it runs."""

    model: Annotated[str | None, Parameter(alias="-m")] = None
    """A model folder, a model file of parlai train_model, or a hub id; with --vectors, the one that made them."""


@settings()
class RankerOrBackbone(RunningSettings):
    """A ranker, or a pre-trained encoder in its place."""

    model: Annotated[str | None, Parameter(alias="-m")] = None
    """A model folder, a model file of parlai train_model, or a hub id."""
    backbone: Annotated[str | None, Without("model"), Without("backend"), Without("model_dtype")] = None
    """Use a pre-trained encoder instead of a model, without training: folder or hub id."""
