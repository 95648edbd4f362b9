"""The files of an ONNX export, and checks that they belong together.

Beside `config.json` and `tokenizer.json` there are the graphs (`context.onnx` and `candidates.onnx`, or a
cross-encoder's `scorer.onnx`), perhaps each again as `*.int8.onnx`, and `onnx.json`, which says what they were made
from. `model.safetensors` may be there too; then it must hold the same weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import safetensors.torch

from polyencoder.errors import CheckpointError
from polyencoder.modeling.export_steps import CANDIDATES, CONTEXT, SCORER
from polyencoder.storage.checkpoint import (
    CALIBRATION,
    CALIBRATION_INT8,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    weights_fingerprint,
)
from polyencoder.storage.digests import file_digest

Precision = Literal["float32", "int8"]

DESCRIPTION = "onnx.json"
FORMAT_VERSION = 1

HOW_TO_EXPORT = "write them with `polyencoder export` or `polyencoder.export.onnx.export_onnx`"
HOW_TO_QUANTIZE = "write them with `polyencoder export` or `polyencoder.export.onnx.quantize_int8`"


def int8_name(name: str) -> str:
    """The name of a graph's quantized form."""
    return name.removesuffix(".onnx") + ".int8.onnx"


def download_patterns(precision: Precision) -> list[str]:
    """The files of a hub repository that this precision needs."""
    names = (CONTEXT, CANDIDATES, SCORER)
    graphs = names if precision == "float32" else map(int8_name, names)
    return [CONFIG, TOKENIZER, CALIBRATION, CALIBRATION_INT8, DESCRIPTION, *graphs]


@dataclass(frozen=True)
class Description:
    """The contents of `onnx.json`."""

    weights: str
    """Fingerprint of the exported torch weights."""
    candidates: str | None
    """The torch ranker's candidate fingerprint; None for a cross-encoder."""
    differences: dict[str, float]
    """Each float32 graph's largest deviation from torch, relative to the largest value."""
    graphs: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each graph's file, by its name."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def read_description(folder: Path) -> Description:
    """Reads `onnx.json`; CheckpointError when it is missing, damaged or of another version."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {DESCRIPTION} in it: it has no exported graphs; {HOW_TO_EXPORT}")
    try:
        values = json.loads(path.read_bytes())
        version = values["format_version"]
        if version == FORMAT_VERSION:
            return Description(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error}); export again") from None
    raise CheckpointError(
        f"{path}: format version {version!r}, but this version of polyencoder reads {FORMAT_VERSION}; export again"
    )


def check_graphs(folder: Path, *, progress: Callable[[int], object] | None = None) -> list[str]:
    """Verifies the graphs of a folder against their digests; returns their names.

    `progress` is called with numbers of bytes that were read. Raises CheckpointError for a graph that is missing or
    damaged, and for a folder without digests.
    """
    expected = read_description(folder).graphs
    if not expected:
        raise CheckpointError(f"{folder / DESCRIPTION}: holds no checksums of the graphs; export again")
    for name, digest in sorted(expected.items()):
        try:
            found = file_digest(folder / name, progress=progress)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: cannot be read ({error.strerror}); export again") from None
        if found != digest:
            raise CheckpointError(
                f"{folder / name}: damaged, its checksum has changed since it was written; copy or export it again"
            )
    return sorted(expected)


def check_weights(folder: Path, expected: str, *, remedy: str) -> None:
    """Raises CheckpointError if the folder's torch weights have another fingerprint."""
    path = folder / WEIGHTS
    if path.is_file() and weights_fingerprint(safetensors.torch.load_file(path)) != expected:
        raise CheckpointError(f"{path}: not the weights of these graphs; {remedy}")
