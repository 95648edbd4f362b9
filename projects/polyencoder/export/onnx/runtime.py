"""Runs exported graphs with onnxruntime, behind the interface of a torch model.

Scores are computed by `polyencoder.scoring` from the graphs' vectors. For inference only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from polyencoder.checkpoint import check_config
from polyencoder.config import RankerConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.export.onnx.exported import Exported
from polyencoder.export.onnx.files import SAVED_AGAIN, Precision, check_weights, read_description
from polyencoder.export.onnx.graph import CPU, Graph
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.convert.contexts import by_vector
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.modeling.families import family
from polyencoder.modeling.late import LateEncoder
from polyencoder.packages import require
from polyencoder.scoring import ContextEncoding
from polyencoder.scoring.tokens import Texts, TokenVectors, packed, stacked
from polyencoder.storage.names import CANDIDATES, CONFIG, CONTEXT, SCORER
from polyencoder.text import TextEncoder, TokenBatch

NO_WEIGHTS = (
    "a ranker of ONNX graphs has no torch weights to save: copy its folder, or save the ranker it was made from"
)


def run(graph: Graph, tokens: TokenBatch) -> dict[str, Tensor]:
    """The graph's outputs for a batch, by name, on the CPU."""
    tokens = tokens.to("cpu")
    sequences = tokens.sequences()
    segments = None
    if tokens.segments is not None:
        rows = zip(tokens.segments.tolist(), sequences, strict=True)
        segments = [row[: len(ids)] for row, ids in rows]
    return {name: torch.from_numpy(output) for name, output in graph(sequences, segments).items()}


class _Exported(RankerModel):
    """Base of exported rankers: modules on a device, without weights."""

    precision: Precision = "float32"

    def __init__(self, config: RankerConfig) -> None:
        RankerModel.__init__(self, config)  # no subclass's: there is nothing to build
        ours = family(config.architecture).can
        self.title, self.has_one_vector = ours.title, ours.has_one_vector
        # Empty: it moves with `to(device)`, and what the graphs give goes where it is.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)

    @classmethod
    def check_shortens(cls, config: RankerConfig) -> NoReturn:
        raise ConfigError("this ranker is ONNX graphs: shorten the original, and export that", argument="vector_dim")

    def export_steps(self) -> NoReturn:
        raise InputError("this ranker is already ONNX graphs: export the original ranker")

    def state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(NO_WEIGHTS)

    def describe(self) -> NoReturn:  # of a model that is saved with its card
        raise InputError(NO_WEIGHTS)


class OnnxSeparable(_Exported):
    """A bi- or poly-encoder, or a ConveRT, of two graphs."""

    def __init__(self, config: RankerConfig, *, context: Graph, candidates: Graph) -> None:
        super().__init__(config)
        self._context, self._candidates = context, candidates
        self.context_vector = "combined" if context.takes_both_texts else None

    @property
    def dim(self) -> int:
        return int(self._candidates.dim)

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        """Encodes contexts: [batch, codes, dim] with their mask."""
        named = {name: output.to(self.place.device) for name, output in run(self._context, tokens).items()}
        encoded = ContextEncoding(named["vectors"], named.get("codes_mask"))
        return encoded if self.context_vector is None else by_vector(encoded)[self.context_vector]

    def pooled(self, tokens: TokenBatch) -> NoReturn:
        raise InputError(
            "graphs give the vectors of contexts and candidates alone: ask for these, or load the model with torch",
            argument="kind",
        )

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        """Encodes candidates: [n, dim]."""
        return run(self._candidates, tokens)["vectors"].to(self.place.device)


class OnnxCrossEncoder(_Exported, CrossEncoder):
    """A cross-encoder of one graph."""

    def __init__(self, config: RankerConfig, *, scorer: Graph) -> None:
        super().__init__(config)
        self._scorer = scorer

    def _score_pairs(self, tokens: TokenBatch) -> Tensor:
        return run(self._scorer, tokens)["scores"].to(tokens.ids.device)


class OnnxLateEncoder(OnnxSeparable, LateEncoder):
    """A late-interaction encoder of two graphs, and the weights of its score."""

    def __init__(self, config: RankerConfig, *, context: Graph, candidates: Graph, exported: Exported) -> None:
        super().__init__(config, context=context, candidates=candidates)
        weights = {name: torch.tensor(weight) for name, weight in (exported.score or {}).items()}
        self.term_weights, self.token_weight = (
            nn.Parameter(weights[name], requires_grad=False) for name in ("term_weights", "token_weight")
        )
        self._token_fingerprint = exported.token_fingerprint

    @property
    def token_fingerprint(self) -> str | None:
        return self._token_fingerprint

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        found = {name: output.to(self.place.device) for name, output in run(self._context, tokens).items()}
        turns = found["codes_mask"].sum(1).tolist()
        weights = tokens.mask / tokens.mask.sum(1, keepdim=True).clamp(min=1)
        read = [
            Texts(*(part[None] for part in (vector, own[:length], weight[:length], means[:n])))
            for vector, own, weight, means, length, n in zip(
                found["vector"], found["tokens"], weights, found["turns"], _lengths(tokens), turns, strict=True
            )
        ]
        most = max(turns, default=0)
        return ContextEncoding(found["vectors"][:, :most], found["codes_mask"][:, :most], tokens=read)

    def read_contexts(self, tokens: TokenBatch) -> Texts:
        read = self.encode_context(tokens).tokens
        assert read is not None
        return stacked(read)

    def read_candidates(self, tokens: TokenBatch) -> list[TokenVectors]:
        found = {name: output.to(self.place.device) for name, output in run(self._candidates, tokens).items()}
        rows = zip(found["vectors"], found["tokens"], _lengths(tokens), strict=True)
        return [TokenVectors(vector, own[:length]) for vector, own, length in rows]

    def _read_candidate(self, tokens: TokenBatch) -> Texts:
        return self._candidate_texts(*packed(self.read_candidates(tokens)))


def _lengths(tokens: TokenBatch) -> list[int]:
    """The number of tokens of each text, at least 1, as a late-interaction encoder reads them."""
    lengths: list[int] = tokens.mask.sum(1).clamp(min=1).tolist()
    return lengths


OnnxRanker = OnnxSeparable | OnnxCrossEncoder


def load_onnx(
    folder: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
    threads: int | None = None,
    device: torch.device | str | None = None,
) -> tuple[OnnxRanker, TextEncoder]:
    """Reads a folder of graphs: `Ranker(*load_onnx(folder, threads=4))`.

    Args:
        folder: what `export_onnx` wrote.
        precision: "int8" for what `quantize_int8` added.
        threads: of onnxruntime; None for as many as torch uses.
        device: "cpu" or "cuda"; None for CUDA when both torch and onnxruntime have it.

    Raises:
        CheckpointError: a file is missing or damaged, or the weights in the folder are not those of the graphs.
        ConfigError: onnxruntime is not installed, or the configuration or tokenizer cannot be used.
    """
    source = Path(folder)
    exported = Exported.open(
        source,
        precision=precision,
        threads=threads or torch.get_num_threads(),
        providers=_providers(require("onnxruntime", extra="onnx"), device),
    )
    config, graphs = exported.config, exported.graphs
    check_config(config, origin=str(source / CONFIG))
    check_weights(source, read_description(source).weights, remedy=SAVED_AGAIN)
    model: OnnxRanker
    if SCORER in graphs:
        model = OnnxCrossEncoder(config, scorer=graphs[SCORER])
    else:
        both = {"context": graphs[CONTEXT], "candidates": graphs[CANDIDATES]}
        if exported.score is None:
            model = OnnxSeparable(config, **both)
        else:
            model = OnnxLateEncoder(config, **both, exported=exported)
        model.candidate_fingerprint = exported.candidate_fingerprint
    model.weights_fingerprints = exported.weights_fingerprints
    model.precision = precision
    return model.eval(), exported.text


def _providers(runtime: Any, device: torch.device | str | None) -> list[Any]:
    """onnxruntime's execution providers for a device, with the CPU as fallback."""
    has_cuda = "CUDAExecutionProvider" in runtime.get_available_providers()
    try:
        kind = torch.device(device).type if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    except (RuntimeError, TypeError):
        kind = "unknown"
    if kind == "cpu" or (device is None and not has_cuda):
        return [CPU]
    if kind != "cuda" or not has_cuda:
        raise ConfigError(
            f"this onnxruntime cannot run on {device!s:.60}: use device='cpu', or for CUDA pip install onnxruntime-gpu"
        )
    index = torch.device(device).index if device is not None else None
    return [("CUDAExecutionProvider", {"device_id": index or 0}), CPU]
