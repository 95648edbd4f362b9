"""The files of an ONNX export, and checks that they belong together.

Beside `polyencoder.json` and `tokenizer.json` there are the graphs (`context.onnx` and `candidates.onnx`, or a
cross-encoder's `scorer.onnx`), perhaps each again as `*.int8.onnx`, and `onnx.json`, which describes their origin.
`polyencoder.safetensors` may be there too; then it must hold the same weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Literal

from polyencoder.errors import CheckpointError
from polyencoder.storage.digests import compute_file_digest
from polyencoder.storage.files import parse_versioned
from polyencoder.storage.names import (
    CALIBRATION,
    CANDIDATES,
    CONFIG,
    CONTEXT,
    DIGESTS,
    SCORER,
    TOKENIZER,
    WEIGHTS,
)
from polyencoder.storage.publish import finish_publication
from polyencoder.validation import from_json_values, validated

Precision = Literal["float32", "int8"]

_GRAPHS: tuple[Set[str], ...] = ({CONTEXT, CANDIDATES}, {SCORER})  # of one model

DESCRIPTION = "onnx.json"
FORMAT_VERSION = 1
QUANTIZATION = 2
"""The version of `quantize_int8`: a version that gives other vectors has another number."""
LONGEST_HEADER = 100_000_000  # bytes: safetensors' own limit

HOW_TO_EXPORT = "write them with `polyencoder export` or `polyencoder.export.onnx.export_onnx`"
SAVED_AGAIN = "the model was saved again since: export the graphs again"
HOW_TO_QUANTIZE = "write them with `polyencoder export` or `polyencoder.export.onnx.quantize_int8`"


def get_int8_name(name: str) -> str:
    """The name of a graph's quantized form."""
    return name.removesuffix(".onnx") + ".int8.onnx"


_FLOAT32 = (CONTEXT, CANDIDATES, SCORER)
_INT8 = tuple(map(get_int8_name, _FLOAT32))
GRAPHS = (*_FLOAT32, *_INT8)
"""The names that graphs may have."""


def download_patterns(precision: Precision) -> list[str]:
    """The files of a hub repository that this precision needs."""
    graphs = _FLOAT32 if precision == "float32" else _INT8
    return [CONFIG, TOKENIZER, CALIBRATION, DESCRIPTION, *graphs]


@validated
class Description:
    """The contents of `onnx.json`."""

    weights: str
    """Fingerprint of the exported torch weights."""
    candidates: str | None
    """The torch ranker's candidate fingerprint; None for a cross-encoder."""
    differences: dict[str, float]
    """Each float32 graph's largest deviation from torch, relative to the largest value."""
    graphs: dict[str, str]
    """The SHA-256 of each graph's file, by its name."""
    has_one_vector: bool
    """See `RankerModel.has_one_vector`."""
    score: dict[str, list[float]] | None = None
    """`RankerModel.export_weights` of a late-interaction encoder; None for other models."""
    tokens: str | None = None
    """`RankerModel.token_fingerprint`."""
    quantization: int = QUANTIZATION
    """The version that quantized its int8 graphs, if any."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def read_description(folder: Path) -> Description:
    """Reads `onnx.json`; CheckpointError when it is missing, damaged or of another version."""
    finish_publication(folder)
    path = folder / DESCRIPTION
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {DESCRIPTION} in it: it has no exported graphs; {HOW_TO_EXPORT}")
    return parse_versioned(
        path.read_bytes(), _check_description, version=FORMAT_VERSION, origin=path, remedy="export again"
    )


def _check_description(values: dict[str, Any]) -> Description:
    description = from_json_values(Description, values)
    if description.differences.keys() not in _GRAPHS:
        raise ValueError(f"differences are of {[*description.differences]}, not of a model's graphs")
    return description


def check_graphs(folder: Path, *, progress: Callable[[int], object] | None = None) -> list[str]:
    """Verifies a folder's graphs, and returns their names. CheckpointError: one is missing or damaged."""
    expected = read_description(folder).graphs
    for name, digest in sorted(expected.items()):
        try:
            actual = compute_file_digest(folder / name, progress=progress)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: cannot be read ({error.strerror}); export again") from None
        if actual != digest:
            raise CheckpointError(
                f"{folder / name}: damaged, its checksum has changed since it was written; copy or export it again"
            )
    return sorted(expected)


def check_saved_weights(folder: Path, expected: str) -> None:
    """Raises CheckpointError if the torch weights were saved with another fingerprint: without reading them."""
    path = folder / WEIGHTS
    if not path.is_file():
        return
    try:  # the format: the length of a JSON header in 8 bytes, the header, the numbers
        with path.open("rb") as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), LONGEST_HEADER)))
        saved = json.loads(header.get("__metadata__", {}).get(DIGESTS, "{}")).get(WEIGHTS, expected)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from None
    if saved != expected:
        raise CheckpointError(f"{path}: not the weights of these graphs; {SAVED_AGAIN}")
