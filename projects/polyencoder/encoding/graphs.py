"""`GraphEncoder`: the ONNX graphs of a ranker as an `Encoder`, run by onnxruntime. Without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np

from polyencoder.config import ContextVector, RankerConfig
from polyencoder.encoding.encoder import BATCH_SIZE, Encoder, Ids, Progress
from polyencoder.encoding.graph import BATCH_TOKENS, CPU, Graph
from polyencoder.encoding.graph_files import (
    DESCRIPTION,
    HOW_TO_EXPORT,
    HOW_TO_QUANTIZE,
    Description,
    Precision,
    check_saved_weights,
    download_patterns,
    get_int8_name,
    read_description,
)
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.modeling.families import check_config, get_family
from polyencoder.packages import require
from polyencoder.search.contexts import Array, Contexts, ContextTokens
from polyencoder.search.late import TokenVectors
from polyencoder.storage.names import CANDIDATES, CONFIG, CONTEXT, SCORER, TOKENIZER
from polyencoder.text.batches import cut_into_batches
from polyencoder.text.context import join_pair
from polyencoder.text.encoder import TextEncoder, read_tokenizer

_OUTPUTS = 1 << 5  # texts whose token outputs are in memory at once

NO_WEIGHTS = (
    "a ranker of ONNX graphs has no torch weights to save: copy its folder, or save the ranker it was made from"
)


@dataclass(eq=False)
class GraphModel:
    """The graphs of a ranker, which describe themselves as a `RankerModel` does."""

    config: RankerConfig
    graphs: Mapping[str, Graph]
    """By the names of the float32 files."""
    precision: Precision
    weights_fingerprints: Mapping[str, str]
    """Fingerprints of the exported torch weights, and of their quantization."""
    candidate_fingerprint: str | None
    """The fingerprint of an index's vectors; an int8 ranker has another. None for a cross-encoder."""
    term_weights: Mapping[str, Sequence[float]] | None = None
    """`RankerModel.export_weights`; None for models whose scores need none."""
    token_fingerprint: str | None = None
    """An int8 ranker has another."""
    context_vector: str | None = None
    """The vector of a multi-context ConveRT that ranks, see `RankerModel`."""

    has_foreign_candidates = False

    @property
    def title(self) -> str:
        return self._can.title

    @property
    def has_vectors(self) -> bool:
        return self._can.has_vectors

    @property
    def has_one_vector(self) -> bool:
        return self._can.has_one_vector

    @property
    def reads_pairs(self) -> bool:
        return self._can.reads_pairs

    @property
    def _can(self) -> Any:
        return get_family(self.config.architecture).can

    @property
    def dim(self) -> int:
        return int(self.graphs[CANDIDATES].dim)

    @property
    def token_dim(self) -> int | None:
        return None if self.term_weights is None else len(self.term_weights["token_weight"])

    def merge_adapters(self) -> GraphModel:
        return self

    def check_has_vectors(self) -> None:
        if not self.has_vectors:
            raise InputError(f"a {self.title} has no vectors of contexts or candidates: it reads them together")

    def truncate(self, dim: int) -> NoReturn:
        raise ConfigError("this ranker is ONNX graphs: shorten the original, and export that", argument="vector_dim")

    def export_steps(self) -> NoReturn:
        raise InputError("this ranker is already ONNX graphs: export the original ranker")

    def parameters(self) -> NoReturn:
        raise InputError(NO_WEIGHTS)

    describe = parameters  # for the card of a saved model


class GraphEncoder(Encoder):
    """Runs the graphs of a folder. For inference only."""

    model: GraphModel

    def __init__(self, model: GraphModel, text: TextEncoder, *, device: str = "cpu", opened: dict[str, Any]) -> None:
        """`opened`: the arguments of `open`."""
        super().__init__()
        self.model, self.text, self.device = model, text, device
        self._opened = opened

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(GraphEncoder.open, **self._opened), ()

    def __copy__(self) -> GraphEncoder:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)  # by `__reduce__` it would open the graphs again
        return copied

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        precision: Precision = "float32",
        threads: int = 0,
        device: object | None = None,
    ) -> GraphEncoder:
        """Opens what `export_onnx` wrote and, for int8, `quantize_int8`.

        Args:
            folder: of the graphs.
            precision: "int8" for the quantized graphs.
            threads: of onnxruntime; 0 for one per core.
            device: "cpu" or "cuda"; None for CUDA where onnxruntime has it.

        Raises:
            CheckpointError: a file is missing or damaged, or the folder has other weights than the graphs.
            ConfigError: onnxruntime is not installed, or the configuration or tokenizer cannot be used.
        """
        source = Path(folder)
        description = read_description(source)
        check_saved_weights(source, description.weights)
        config = RankerConfig.from_json(_read(source / CONFIG), origin=str(source / CONFIG))
        check_config(config, origin=str(source / CONFIG))
        exact = precision == "float32"
        files = {name: name if exact else get_int8_name(name) for name in description.differences}
        for file in files.values():
            if not (source / file).is_file():
                remedy = HOW_TO_EXPORT if exact else HOW_TO_QUANTIZE
                raise CheckpointError(f"{source}: no {file} in it: the {precision} graphs are missing; {remedy}")
        _read(source / TOKENIZER)
        text = TextEncoder(read_tokenizer(source / TOKENIZER), config.text)
        providers = _choose_providers(require("onnxruntime", extra="onnx"), device)
        graphs = {
            name: Graph(source / file, pad_id=text.pad_id, threads=threads, providers=providers)
            for name, file in files.items()
        }
        for graph in graphs.values():
            if graph.takes_both_texts:
                graph.separator = text.separator_ids[0]
        _check_score(description, graphs, source)
        candidates, suffix = description.candidates, ""
        if not exact:  # another quantization gives other vectors and scores
            suffix = f"-{precision}.{description.quantization}"
        model = GraphModel(
            config,
            graphs,
            precision,
            {"float32": description.weights + suffix},
            candidates and candidates + suffix,
            description.score,
            description.tokens and description.tokens + suffix,
            "combined" if any(graph.takes_both_texts for graph in graphs.values()) else None,
        )
        opened = {"folder": source, "precision": precision, "threads": threads, "device": device}
        return cls(model, text, device="cpu" if providers == [CPU] else "cuda", opened=opened)

    def encode_contexts(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, max_tokens: int | None = None
    ) -> Contexts:
        batches, parts = self._plan_batches(ids, batch_size=batch_size, max_tokens=max_tokens), []
        for batch in batches:
            sequences = [ids[position] for position in batch]
            outputs = self.model.graphs[CONTEXT](sequences)
            vectors, mask, tokens = outputs["vectors"], outputs.get("codes_mask"), None
            if self.model.context_vector is not None:
                idx = get_args(ContextVector).index(self.model.context_vector)
                vectors = vectors[:, idx : idx + 1]
                mask = mask[:, idx : idx + 1] if mask is not None and self.model.context_vector == "extra" else None
            elif mask is not None:  # a graph pads every context to as many vectors, and a scan would multiply them all
                used = np.flatnonzero(mask.any(axis=0)) if mask.any() else [0]
                vectors, mask = vectors[:, used], mask[:, used]
            if self.model.token_dim is not None:
                tokens = ContextTokens.from_arrays(sequences, outputs)
            parts.append(Contexts(vectors, mask, tokens=tokens))
        order = np.argsort([position for batch in batches for position in batch])
        return Contexts.concatenate(parts).select(order.tolist())

    def encode_candidates(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
    ) -> Array:
        vectors = np.empty((len(ids), self.model.dim), dtype=np.float32)
        for batch in self._plan_batches(ids, batch_size=batch_size):
            vectors[batch] = self.model.graphs[CANDIDATES]([ids[position] for position in batch])["vectors"]
            if progress is not None:
                progress(len(batch))
        return vectors

    def encode_pooled(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
    ) -> NoReturn:
        raise InputError(
            "graphs give the vectors of contexts and candidates alone: ask for these, or load the model with torch",
            argument="kind",
        )

    def read_candidates(
        self, ids: Sequence[Ids], *, max_tokens: int | None = None, progress: Progress | None = None
    ) -> list[TokenVectors]:
        read: dict[int, TokenVectors] = {}
        for batch in self._plan_batches(ids, max_tokens=max_tokens):
            sequences = [ids[position] for position in batch]
            outputs = self.model.graphs[CANDIDATES](sequences)
            read |= zip(
                batch, TokenVectors.from_arrays(sequences, outputs["vectors"], outputs.get("tokens")), strict=True
            )
            if progress is not None:
                progress(len(batch))
        return [read[position] for position in range(len(ids))]

    def score_pairs(
        self, contexts: Sequence[Ids], candidates: Sequence[Ids], index: Array, *, max_tokens: int | None = None
    ) -> Array:
        scores = np.full(index.shape, -np.inf, dtype=np.float32)
        start, longest = self.model.config.candidate_start, self.model.config.pair_truncate
        for row, candidates_of_row in enumerate(index):
            columns = np.flatnonzero(candidates_of_row >= 0)
            texts = [candidates[position] for position in candidates_of_row[columns].tolist()]
            pairs = [join_pair(contexts[row], ids, start=start, max_tokens=longest) for ids in texts]
            for batch in self._plan_batches([ids for ids, _ in pairs], max_tokens=max_tokens):
                outputs = self.model.graphs[SCORER](*zip(*(pairs[position] for position in batch), strict=True))
                scores[row, columns[batch]] = outputs["scores"]
        return scores

    def get_term_weights(self) -> Mapping[str, Sequence[float]] | None:
        return self.model.term_weights

    @property
    def facts(self) -> tuple[str, str]:
        return "ONNX graphs", self.model.precision

    @property
    def threads(self) -> int:
        return self._opened["threads"] or os.cpu_count() or 1

    def copy_to_worker(self, *, number: int, threads: int) -> GraphEncoder:
        return GraphEncoder.open(**self._opened | {"threads": threads})

    def _plan_batches(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, max_tokens: int | None = None
    ) -> list[list[int]]:
        """The positions of each batch's texts; smaller batches for a model that gives a vector for each token."""
        size = batch_size if self.model.token_dim is None else min(batch_size, _OUTPUTS)
        return cut_into_batches([len(row) for row in ids], max_tokens=max_tokens or BATCH_TOKENS, batch_size=size)


def find_graphs_folder(name: str | os.PathLike[str], *, precision: Precision = "float32") -> Path:
    """The folder of a ranker's graphs, by its path or hub id. CheckpointError: there are none."""
    if os.path.isdir(name):  # False for what cannot be a path; an empty name is no path
        return Path(name)
    if os.path.isfile(name):
        raise CheckpointError(f"{os.fspath(name)}: a model file has no ONNX graphs; {HOW_TO_EXPORT}")
    if find_spec("huggingface_hub") is None:  # polyencoder-runtime can be installed without it
        raise CheckpointError(
            f"{os.fspath(name):.300}: no such folder, and names of the hub need the package `huggingface_hub`, which "
            "is not installed"
        )
    from polyencoder.hub.resolve import download_files  # here: a folder needs no hub

    return download_files(name, download_patterns(precision))


def _choose_providers(runtime: Any, device: object | None) -> list[Any]:
    """onnxruntime's execution providers for a device, with the CPU as fallback."""
    has_cuda = "CUDAExecutionProvider" in runtime.get_available_providers()
    chosen = ("cuda" if has_cuda else "cpu") if device is None else str(device)
    kind, _, number = chosen.partition(":")
    if kind not in ("cpu", "cuda") or number.strip("0123456789") or (kind == "cuda" and not has_cuda):
        raise ConfigError(
            f"this onnxruntime cannot run on {device!s:.60}: use device='cpu', or for CUDA pip install onnxruntime-gpu"
        )
    return [CPU] if kind == "cpu" else [("CUDAExecutionProvider", {"device_id": int(number or 0)}), CPU]


def _check_score(description: Description, graphs: Mapping[str, Graph], source: Path) -> None:
    """Raises CheckpointError unless the description has the score's weights for the graphs' outputs."""
    tokens = graphs[CANDIDATES].dims.get("tokens") if CANDIDATES in graphs else None
    expected = {} if tokens is None else {"term_weights": (5,), "scale": (1,), "token_weight": (tokens,)}
    shapes = {name: np.shape(weights) for name, weights in (description.score or {}).items()}
    if shapes != expected:
        raise CheckpointError(
            f"{source / DESCRIPTION}: damaged: the graphs need weights of a score with the shapes {expected}, not "
            f"{shapes}; export again"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {HOW_TO_EXPORT}") from None
