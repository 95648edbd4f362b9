"""Options that several commands have."""

from __future__ import annotations

import os
import sys
from typing import Annotated, cast, get_args

import torch
import typer

from polyencoder.errors import ConfigError
from polyencoder.index.searcher import Searcher
from polyencoder.ranker.ranker import Backend, Ranker
from polyencoder.storage.checkpoint import WeightDtype, holds_ranker

__all__ = [
    "BackboneName",
    "BackendName",
    "CandidatesColumn",
    "ContextColumn",
    "Device",
    "IndexPath",
    "KeepTurns",
    "MinProbability",
    "Model",
    "ModelDtype",
    "ModelOrNone",
    "Progress",
    "ResponseColumn",
    "left_out",
    "load",
    "load_encoder",
]

Model = Annotated[
    str, typer.Option("--model", "-m", help="A model folder, a model file of parlai train_model, or a hub id.")
]
ModelOrNone = Annotated[
    str | None, typer.Option("--model", "-m", help="A model folder, a model file of parlai train_model, or a hub id.")
]
BackboneName = Annotated[
    str | None, typer.Option(help="Use a pre-trained encoder as it is instead of a model: folder or hub id.")
]
Device = Annotated[str | None, typer.Option(help="For example cpu or cuda:1 (default: CUDA if available).")]
BackendName = Annotated[
    str, typer.Option("--backend", help="What runs the model: torch, or, for an exported folder, onnx or onnx-int8.")
]
ModelDtype = Annotated[
    str,
    typer.Option(
        help="Precision of the encoder: float32, or bfloat16, which is faster on machines that support it. Indexes and "
        "calibrations work with both."
    ),
]
IndexPath = Annotated[
    str, typer.Option("--index", "-i", help="The index: its folder, or milvus: and the address of a server or file.")
]

ContextColumn = Annotated[
    str, typer.Option("--context", help="The column with the context: a text or a list of turns.")
]
ResponseColumn = Annotated[str, typer.Option("--response", help="The column with the right response.")]
CandidatesColumn = Annotated[
    str, typer.Option("--candidates", help="The column with candidates: a list, or one text joined by |.")
]
KeepTurns = Annotated[
    bool,
    typer.Option(
        "--keep-turns", help="Also return candidates that repeat a turn of their context (ignoring case and spacing)."
    ),
]
MinProbability = Annotated[
    str | None,
    typer.Option(
        help="Leave out results that are less likely than this to be right: 0 to 1, or auto for the precision that the "
        "model was calibrated for. See polyencoder calibrate."
    ),
]
Progress = Annotated[
    bool | None,
    typer.Option(help="Show progress bars on standard error (default: if it is a terminal)."),
]


def shows_bars(progress: bool | None) -> bool:
    """Whether bars are shown, which would fill a log file with every state that they had."""
    return sys.stderr.isatty() if progress is None else progress


def load(model: str, *, device: str | None, backend: str = "torch", dtype: str = "float32") -> Ranker:
    """The model that the options name; of processes that torchrun starts, each takes a GPU of its own."""
    if device is None and torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    if dtype not in get_args(WeightDtype):
        raise ConfigError(f"--model-dtype {dtype:.60}: it must be one of {', '.join(get_args(WeightDtype))}")
    return Ranker.from_pretrained(
        model, device=device, backend=cast("Backend", backend), dtype=cast("WeightDtype", dtype)
    )


def load_encoder(
    model: str | None, backbone: str | None, *, device: str | None, backend: str = "torch", dtype: str = "float32"
) -> Ranker:
    """The model that the options name, or a bi-encoder of one tower around a pre-trained encoder."""
    if (model is None) == (backbone is None):
        raise ConfigError("give either --model, a ranker, or --backbone, a pre-trained encoder")
    if model is not None:
        return load(model, device=device, backend=backend, dtype=dtype)
    assert backbone is not None
    if backend != "torch" or dtype != "float32":
        raise ConfigError("--backend and --model-dtype are for a --model, not for a --backbone")
    if holds_ranker(backbone):
        raise ConfigError(f"--backbone {backbone} is a ranker, not a pre-trained encoder: give it as --model")
    return Ranker.from_backbone(backbone, share_encoders=True, device=device)


def left_out(searcher: Searcher) -> str | None:
    """What is said of candidates that were turns of their contexts."""
    if searcher.left_out == 0:
        return None
    return f"left out {searcher.left_out:,} candidates that are turns of their own contexts (--keep-turns keeps them)"
