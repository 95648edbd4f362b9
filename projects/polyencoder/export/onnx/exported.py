"""`Exported`: a folder of graphs, opened with its configuration and tokenizer. Without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError
from polyencoder.export.onnx.files import (
    DESCRIPTION,
    HOW_TO_EXPORT,
    HOW_TO_QUANTIZE,
    Description,
    Precision,
    check_saved_weights,
    download_patterns,
    int8_name,
    read_description,
)
from polyencoder.export.onnx.graph import CPU, Graph
from polyencoder.storage.names import CANDIDATES, CONFIG, SCORER, TOKENIZER
from polyencoder.text.encoder import TextEncoder, read_tokenizer


@dataclass(frozen=True)
class Exported:
    """The graphs of a ranker."""

    config: RankerConfig
    text: TextEncoder
    graphs: Mapping[str, Graph]
    """By the names of the float32 files."""
    precision: Precision
    weights_fingerprints: Mapping[str, str]
    """As `RankerModel.weights_fingerprints`: those of the exported torch weights, and of their quantization."""
    candidate_fingerprint: str | None
    """That of an index's vectors; an int8 ranker's are others. None for a cross-encoder."""
    has_one_vector: bool
    """As `RankerModel.has_one_vector`."""
    score: Mapping[str, Sequence[float]] | None = None
    """`RankerModel.export_weights`; None of models whose scores need none."""
    token_fingerprint: str | None = None
    """As `RankerModel.token_fingerprint`; an int8 ranker's are others."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        precision: Precision = "float32",
        threads: int = 0,
        providers: Sequence[Any] = (CPU,),
    ) -> Exported:
        """Opens what `export_onnx` wrote and, for int8, `quantize_int8`; `threads` and `providers` as in `Graph`.

        Raises:
            CheckpointError: a file is missing or damaged.
            ConfigError: onnxruntime is not installed, or the configuration or tokenizer cannot be used.
        """
        source = Path(folder)
        description = read_description(source)
        check_saved_weights(source, description.weights)
        config = RankerConfig.from_json(_read(source / CONFIG), origin=str(source / CONFIG))
        exact = precision == "float32"
        files = {name: name if exact else int8_name(name) for name in description.differences}
        for file in files.values():
            if not (source / file).is_file():
                remedy = HOW_TO_EXPORT if exact else HOW_TO_QUANTIZE
                raise CheckpointError(f"{source}: no {file} in it: the {precision} graphs are missing; {remedy}")
        _read(source / TOKENIZER)
        text = TextEncoder(read_tokenizer(source / TOKENIZER), config.text)
        given: dict[str, Any] = {"pad_id": text.pad_id, "threads": threads, "providers": providers}
        graphs = {name: Graph(source / file, **given) for name, file in files.items()}
        for graph in graphs.values():
            if graph.takes_both_texts:
                graph.separator = text.separator_ids[0]
        _check_score(description, graphs, source)
        candidates, suffix = description.candidates, ""
        if not exact:  # another quantization gives other vectors and scores
            suffix = f"-{precision}.{description.quantization}"
        return cls(
            config,
            text,
            graphs,
            precision,
            {"float32": description.weights + suffix},
            candidates and candidates + suffix,
            description.has_one_vector,
            description.score,
            description.tokens and description.tokens + suffix,
        )

    @property
    def title(self) -> str:
        """As `RankerModel.title`."""
        return f"{self.config.architecture}-encoder"

    @property
    def reads_pairs(self) -> bool:
        """As `RankerModel.reads_pairs`."""
        return not self.has_vectors or self.score is not None

    @property
    def has_vectors(self) -> bool:
        """As `RankerModel.has_vectors`."""
        return SCORER not in self.graphs

    def merged(self) -> Exported:
        """As `RankerModel.merged`."""
        return self


def graphs_folder(name: str | os.PathLike[str], *, precision: Precision = "float32") -> Path:
    """The folder of a ranker's graphs, by its path or hub id.

    Raises:
        CheckpointError: there are none.
    """
    if os.path.isdir(name):  # False for what cannot be a path; an empty name is no path
        return Path(name)
    if os.path.isfile(name):
        raise CheckpointError(f"{os.fspath(name)}: a model file has no ONNX graphs; {HOW_TO_EXPORT}")
    if find_spec("huggingface_hub") is None:  # polyencoder-runtime can be installed without it
        raise CheckpointError(
            f"{os.fspath(name):.300}: no such folder, and names of the hub need the package `huggingface_hub`, which "
            "is not installed"
        )
    from polyencoder.hub.resolve import downloaded  # here: a folder needs no hub

    return downloaded(name, download_patterns(precision))


def _check_score(description: Description, graphs: Mapping[str, Graph], source: Path) -> None:
    """Raises CheckpointError unless there are weights of a score for what the graphs give."""
    tokens = graphs[CANDIDATES].dims.get("tokens") if CANDIDATES in graphs else None
    expected = {} if tokens is None else {"term_weights": (5,), "scale": (1,), "token_weight": (tokens,)}
    found = {name: np.shape(weights) for name, weights in (description.score or {}).items()}
    if found != expected:
        raise CheckpointError(
            f"{source / DESCRIPTION}: damaged: the graphs need weights of a score with the shapes {expected}, not "
            f"{found}; export again"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {HOW_TO_EXPORT}") from None
