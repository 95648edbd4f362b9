"""Dynamic int8 quantization of ONNX graphs for CPUs: weights rounded once, activations at run time."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from polyencoder.checkpoint import CONFIG, TOKENIZER
from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError, first_line
from polyencoder.export.onnx.files import DESCRIPTION, HOW_TO_EXPORT, graph_names, int8_name, read_description
from polyencoder.extras import require
from polyencoder.files import replacing


def quantize_int8(folder: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None) -> None:
    """Write each float32 graph of a folder again as `*.int8.onnx`, for `backend="onnx-int8"`.

    The weights of the linear layers become int8, with a scale for each of their outputs; embeddings, attention between
    tokens, layer normalisation and the second layer of each feed-forward block stay float32. The scale of activations
    is that of a whole batch, so that a text's vector depends a little on the texts beside it.

    Args:
        folder: what `export_onnx` wrote.
        out: another folder to write to, with all that the int8 ranker needs; None for `folder` itself.

    Raises:
        CheckpointError: a file of the export is missing.
        ConfigError: onnx or onnxruntime is not installed.
    """
    source, target = Path(folder), Path(out or folder)
    onnx = require("onnx", extra="onnx")
    quantization = require("onnxruntime.quantization", extra="onnx")
    read_description(source)
    config = RankerConfig.from_json((source / CONFIG).read_bytes(), origin=str(source / CONFIG))
    graphs = {name: _read_graph(source / name, onnx) for name in graph_names(config.architecture)}
    with ExitStack() as written:
        for name, graph in graphs.items():
            quantization.quantize_dynamic(
                graph,
                written.enter_context(replacing(target / int8_name(name))),
                op_types_to_quantize=["MatMul"],  # nn.Linear over tokens; a cross-encoder's last layer is no MatMul
                nodes_to_exclude=_narrowing(graph),
                per_channel=True,
                # 7 bits of the 8: on x86 before VNNI the products of 8 overflow, and nothing says so
                reduce_range=True,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # where it cannot infer one
            )
        if target.resolve() != source.resolve():
            for name in (CONFIG, TOKENIZER, DESCRIPTION):
                shutil.copyfile(source / name, written.enter_context(replacing(target / name)))


def _read_graph(path: Path, onnx: Any) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: no {path.name} in it: nothing to quantize; {HOW_TO_EXPORT}")
    try:
        graph = onnx.load(path)
    except Exception as error:  # protobuf's own, which is another in each of its implementations
        raise CheckpointError(f"{path}: not a readable ONNX graph ({first_line(error)}); export again") from None
    del graph.graph.value_info[:]  # shapes that it may have written down, of what quantization makes others of
    _unshare(graph)
    # The mark of a prepared graph. Without it onnxruntime advises to merge operators first, which it does by itself
    # when it opens the graph.
    onnx.helper.set_model_props(graph, {"onnx.quant.pre_process": "onnxruntime.quant"})
    return graph


def _unshare(graph: Any) -> None:
    """Give each Gemm weights of its own: onnxruntime turns those in place, once for each node that has them."""
    weights = {weight.name: weight for weight in graph.graph.initializer}
    seen: set[str] = set()
    for node in graph.graph.node:
        name = node.input[1] if node.op_type == "Gemm" else None
        if name in seen and name in weights:
            copied = graph.graph.initializer.add()
            copied.CopyFrom(weights[name])
            copied.name = node.input[1] = f"{name} of {node.name}"
        elif name is not None:
            seen.add(name)


def _narrowing(graph: Any) -> list[str]:
    """The linear layers that take more values than they give: of a transformer, the second of each feed-forward block.

    What comes out of the activation before them has outliers, for which one scale for all values is too coarse: they
    cause half of what int8 changes in a vector, and take a third of the products.
    """
    shapes = {weight.name: tuple(weight.dims) for weight in graph.graph.initializer if len(weight.dims) == 2}
    layers = ((node.name, shapes.get(node.input[1])) for node in graph.graph.node if node.op_type == "MatMul")
    return [name for name, shape in layers if shape is not None and shape[0] > shape[1]]
