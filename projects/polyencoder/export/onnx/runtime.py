"""Runs exported graphs with onnxruntime, behind the interface of a torch model.

Scores are computed by `polyencoder.scoring` from the graphs' vectors. For inference only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError, ConfigError, InputError, first_line
from polyencoder.export.onnx.files import (
    HOW_TO_EXPORT,
    HOW_TO_QUANTIZE,
    Precision,
    check_weights,
    download_patterns,
    int8_name,
    read_description,
)
from polyencoder.hub.resolve import downloaded, exists
from polyencoder.modeling import CrossEncoder, RankerModel
from polyencoder.modeling.convert.contexts import both_texts, by_vector
from polyencoder.modeling.export_steps import CANDIDATES, CONTEXT, SCORER
from polyencoder.modeling.families import family
from polyencoder.packages import require
from polyencoder.ranker.encoding import BATCH_TOKENS
from polyencoder.scoring import ContextEncoding, Keys
from polyencoder.storage.checkpoint import CONFIG, TOKENIZER, read_config
from polyencoder.text import TextEncoder, TokenBatch, read_tokenizer, token_batches

CPU = "CPUExecutionProvider"
NO_WEIGHTS = (
    "a ranker of ONNX graphs has no torch weights to save: copy its folder, or save the ranker it was made from"
)
GROUP = 16  # sequences per graph call on a CPU: enough to keep it busy


def inputs_of(tokens: TokenBatch, *, separator: int | None = None) -> dict[str, Tensor]:
    """A batch's tensors for all possible graph inputs, by name.

    `separator` is a multi-context ConveRT's, whose graph is given two texts of each context.
    """
    given = {}
    if separator is not None:
        tokens, extra = both_texts(tokens, separator=separator)
        given = {"extra_ids": extra.ids, "extra_mask": extra.mask}
    if tokens.segments is not None:
        given["segments"] = tokens.segments
    return {"ids": tokens.ids, "mask": tokens.mask, **given}


class Graph:
    """One ONNX graph: token ids and masks in, tensors out."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        device: torch.device | str | None = None,
        separator: int | None = None,
    ) -> None:
        """Opens a graph.

        Args:
            path: the file.
            threads: of onnxruntime; None for as many as torch uses.
            device: "cpu" or "cuda"; None for CUDA when both torch and onnxruntime have it.
            separator: the token between the two texts of a context that the graph is given.

        Raises:
            ConfigError: onnxruntime is not installed, or has no CUDA although it was asked for.
            CheckpointError: not a graph that onnxruntime can read.
        """
        runtime = require("onnxruntime", extra="onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.log_severity_level = 3  # errors alone
        # A graph's threads would wait for more work by spinning, while those of the ranker's other graph compute
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = _providers(runtime, device)
        # Merged into one operator, an addition and a normalisation take longer on a CPU than one after the other
        slower = ["SkipLayerNormFusion"] if providers == [CPU] else []
        try:
            self._session = runtime.InferenceSession(
                os.fspath(path), options, providers=providers, disabled_optimizers=slower
            )
        except Exception as error:  # onnxruntime's own exceptions share no base but Exception
            raise CheckpointError(f"{os.fspath(path)}: not a readable ONNX graph ({first_line(error)})") from None
        self._inputs = {one.name for one in self._session.get_inputs()}
        self.separator = separator
        self._on_cpu = providers == [CPU]
        self.outputs = [one.name for one in self._session.get_outputs()]
        self.dim = self._session.get_outputs()[0].shape[-1]

    @property
    def takes_both_texts(self) -> bool:
        """Whether the graph takes the two texts of a context separately (multi-context ConveRT)."""
        return "extra_ids" in self._inputs

    def __call__(self, tokens: TokenBatch) -> list[Tensor]:
        """The graph's outputs for a batch, on the CPU.

        Where it runs on a CPU, for which padding costs as much as text, sequences of like length go through together.
        """
        if not self._on_cpu:
            return self._run(tokens)
        tokens = tokens.to("cpu")
        groups = token_batches(tokens.mask.sum(1).tolist(), max_tokens=BATCH_TOKENS, batch_size=GROUP)
        parts = [self._run(tokens.select(torch.tensor(rows))) for rows in groups]
        order = torch.tensor([row for rows in groups for row in rows]).argsort()
        return [_stack(outputs)[order] for outputs in zip(*parts, strict=True)]

    def _run(self, tokens: TokenBatch) -> list[Tensor]:
        given = inputs_of(tokens, separator=self.separator)
        feed = {name: tensor.cpu().numpy() for name, tensor in given.items() if name in self._inputs}
        return [torch.from_numpy(output) for output in self._session.run(None, feed)]


class _Exported(RankerModel):
    """Base of exported rankers: modules on a device, without weights."""

    precision: Precision = "float32"

    def __init__(self, config: RankerConfig) -> None:
        RankerModel.__init__(self, config)  # no subclass's: there is nothing to build
        ours = family(config.architecture).model
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
        outputs = [output.to(self.place.device) for output in self._context(tokens)]
        named = dict(zip(self._context.outputs, outputs, strict=True))
        keys = None
        if "keys" in named:
            keys = Keys(named["keys"], named["key_biases"], self.config.poly_attention_heads)
        encoded = ContextEncoding(named["vectors"], named.get("codes_mask"), keys)
        return encoded if self.context_vector is None else by_vector(encoded)[self.context_vector]

    def pooled(self, tokens: TokenBatch) -> NoReturn:
        raise InputError(
            "graphs give the vectors of contexts and candidates alone: ask for these, or load the model with torch",
            argument="kind",
        )

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        """Encodes candidates: [n, dim]."""
        return self._candidates(tokens)[0].to(self.place.device)


class OnnxCrossEncoder(_Exported, CrossEncoder):
    """A cross-encoder of one graph."""

    def __init__(self, config: RankerConfig, *, scorer: Graph) -> None:
        super().__init__(config)
        self._scorer = scorer

    def _score_pairs(self, tokens: TokenBatch) -> Tensor:
        return self._scorer(tokens)[0].to(tokens.ids.device)


OnnxRanker = OnnxSeparable | OnnxCrossEncoder


def find_onnx(
    name: str | os.PathLike[str], *, precision: Precision = "float32", device: torch.device | str | None = None
) -> tuple[Path, tuple[OnnxRanker, TextEncoder]]:
    """Finds the folder of a ranker's graphs, by path or hub id, and the arguments of `load_onnx`.

    Raises:
        CheckpointError: there are none, or they are damaged.
    """
    path = Path(name)
    if exists(name) and path.is_file():
        raise CheckpointError(f"{path}: a model file has no ONNX graphs; {HOW_TO_EXPORT}")
    folder = path if exists(name) and path.is_dir() else downloaded(name, download_patterns(precision))
    return folder, load_onnx(folder, precision=precision, device=device)


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
        threads, device: see `Graph`.

    Raises:
        CheckpointError: a file is missing or damaged, or the weights in the folder are not those of the graphs.
        ConfigError: onnxruntime is not installed, or the configuration or tokenizer cannot be used.
    """
    source = Path(folder)
    description = read_description(source)
    config = read_config(_read(source / CONFIG), origin=str(source / CONFIG))
    files = {name: name if precision == "float32" else int8_name(name) for name in description.differences}
    for file in files.values():
        if not (source / file).is_file():
            remedy = HOW_TO_EXPORT if precision == "float32" else HOW_TO_QUANTIZE
            raise CheckpointError(f"{source}: no {file} in it: the {precision} graphs are missing; {remedy}")
    check_weights(source, description.weights, remedy="the model was saved again since: export the graphs again")
    _read(source / TOKENIZER)
    text = TextEncoder(read_tokenizer(source / TOKENIZER), config.text)
    graphs = {name: Graph(source / file, threads=threads, device=device) for name, file in files.items()}
    for graph in graphs.values():
        if graph.takes_both_texts:
            graph.separator = text.separator_ids[0]
    model: OnnxRanker
    if SCORER in graphs:
        model = OnnxCrossEncoder(config, scorer=graphs[SCORER])
    else:
        model = OnnxSeparable(config, context=graphs[CONTEXT], candidates=graphs[CANDIDATES])
        exact = precision == "float32"  # an int8 ranker's vectors are others
        model.candidate_fingerprint = description.candidates if exact else f"{description.candidates}-{precision}"
    model.weights_fingerprints = {"float32": description.weights}
    model.precision = precision
    return model.eval(), text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {HOW_TO_EXPORT}") from None


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


def _stack(parts: tuple[Tensor, ...]) -> Tensor:
    """Concatenates tensors [batch, ...]; those with fewer codes are padded with zeros (False)."""
    if parts[0].dim() == 1:
        return torch.cat(parts)
    width = max(part.size(1) for part in parts)
    behind = (0, 0) * (parts[0].dim() - 2)  # nothing is added to the dimensions after the codes
    return torch.cat([nn.functional.pad(part, (*behind, 0, width - part.size(1))) for part in parts])
