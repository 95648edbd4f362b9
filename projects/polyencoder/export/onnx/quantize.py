"""Dynamic int8 quantization of ONNX graphs for CPUs: weights rounded once, activations at run time."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.errors import CheckpointError, first_line
from polyencoder.export.onnx.files import DESCRIPTION, HOW_TO_EXPORT, int8_name, read_description
from polyencoder.packages import require
from polyencoder.storage.digests import file_digest
from polyencoder.storage.files import atomic_write
from polyencoder.storage.names import CONFIG, TOKENIZER


def quantize_int8(folder: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None) -> None:
    """Quantizes each float32 graph of a folder to `*.int8.onnx`, for `backend="onnx-int8"`.

    The weights of the linear layers become int8, with a scale for each of their outputs, and so do embeddings, with a
    scale for each token. What computes in int8 are the linear layers, except the second of each feed-forward block:
    embeddings and its weights are stored in int8 alone. The scale of activations is that of a whole batch, so that a
    text's vector depends a little on the texts beside it.

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
    description = read_description(source)
    graphs = {name: _read_graph(source / name, onnx) for name in description.differences}
    digests = description.graphs if target.resolve() == source.resolve() else {}
    with ExitStack() as written:
        described = written.enter_context(atomic_write(target / DESCRIPTION))  # entered first: it takes its place last
        for name, graph in graphs.items():
            narrowing = _narrowing(graph)
            _store_in_int8(graph, narrowing, onnx)
            path = written.enter_context(atomic_write(target / int8_name(name)))
            quantization.quantize_dynamic(
                graph,
                path,
                op_types_to_quantize=["MatMul"],  # nn.Linear over tokens; a cross-encoder's last layer is no MatMul
                nodes_to_exclude=narrowing,
                per_channel=True,
                # 7 bits of the 8: on x86 before VNNI the products of 8 overflow, and nothing says so
                reduce_range=True,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # where it cannot infer one
            )
            digests = {**digests, int8_name(name): file_digest(path)}
        described.write_text(replace(description, graphs=digests).to_json(), encoding="utf-8")
        if target.resolve() != source.resolve():
            for name in (CONFIG, TOKENIZER):
                shutil.copyfile(source / name, written.enter_context(atomic_write(target / name)))


def _read_graph(path: Path, onnx: Any) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: no {path.name} in it: nothing to quantize; {HOW_TO_EXPORT}")
    try:
        graph = onnx.load(path)
    except Exception as error:  # protobuf's own, which is another in each of its implementations
        raise CheckpointError(f"{path}: not a readable ONNX graph ({first_line(error)}); export again") from None
    del graph.graph.value_info[:]  # recorded shapes, which quantization changes
    _unshare(graph)
    # The mark of a prepared graph. Without it onnxruntime advises to merge operators first, which it does by itself
    # when it opens the graph.
    onnx.helper.set_model_props(graph, {"onnx.quant.pre_process": "onnxruntime.quant"})
    return graph


def _unshare(graph: Any) -> None:
    """Copies shared Gemm weights: onnxruntime transposes them in place, once for each node that uses them."""
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
    """The linear layers with more inputs than outputs: in a transformer the second one of each feed-forward block.

    What comes out of the activation before them has outliers, for which one scale for all values is too coarse: they
    cause half of what int8 changes in a vector, and take a third of the products.
    """
    shapes = {weight.name: tuple(weight.dims) for weight in graph.graph.initializer if len(weight.dims) == 2}
    layers = ((node.name, shapes.get(node.input[1])) for node in graph.graph.node if node.op_type == "MatMul")
    return [name for name, shape in layers if shape is not None and shape[0] > shape[1]]


def _store_in_int8(graph: Any, layers: list[str], onnx: Any) -> None:
    """Replaces embeddings, and the weights of these layers, by int8 ones that are dequantized at run time.

    Of embeddings only the rows that are looked up; of layers all weights, once, when onnxruntime opens the graph.
    """
    weights = {weight.name: weight for weight in graph.graph.initializer}
    uses = Counter(name for node in graph.graph.node for name in node.input)
    stored = []
    for node in graph.graph.node:
        lookup = node.op_type == "Gather" and not any(one.name == "axis" and one.i for one in node.attribute)
        place = 0 if lookup else 1
        weight = weights.get(node.input[place]) if lookup or node.name in layers else None
        if weight is None or len(weight.dims) != 2 or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        if uses[weight.name] == 1:
            stored.append((node, place, weight))
    for node, place, weight in stored:
        values = onnx.numpy_helper.to_array(weight)
        scale = np.maximum(np.abs(values).max(1 - place, keepdims=True) / 127, np.finfo(np.float32).tiny)
        parts = {"int8": np.rint(values / scale).astype(np.int8), "scale": scale.astype(np.float32)}
        names = {kind: f"{weight.name} {kind}" for kind in parts}
        graph.graph.initializer.remove(weight)
        graph.graph.initializer.extend(onnx.numpy_helper.from_array(parts[kind], names[kind]) for kind in parts)
        at = list(graph.graph.node).index(node)
        made = _looked_up(node, names, onnx) if place == 0 else _whole(node, names, onnx)
        if place == 0:
            graph.graph.node.remove(node)
        for one in reversed(made):
            graph.graph.node.insert(at, one)


def _looked_up(node: Any, names: dict[str, str], onnx: Any) -> list[Any]:
    """Replaces a Gather: gathers int8 rows and scales, and multiplies them."""
    rows = {kind: f"{node.output[0]} {kind}" for kind in names}
    make = onnx.helper.make_node
    return [
        *(make("Gather", [names[kind], node.input[1]], [rows[kind]], f"{node.name} {kind}", axis=0) for kind in names),
        make("Cast", [rows["int8"]], [f"{rows['int8']} float"], f"{node.name} float", to=onnx.TensorProto.FLOAT),
        make("Mul", [f"{rows['int8']} float", rows["scale"]], [node.output[0]], f"{node.name} rows"),
    ]


def _whole(node: Any, names: dict[str, str], onnx: Any) -> list[Any]:
    """Dequantizes the weights of a MatMul."""
    make, cast = onnx.helper.make_node, f"{names['int8']} float"
    node.input[1] = f"{names['int8']} scaled"
    return [
        make("Cast", [names["int8"]], [cast], f"{node.name} float", to=onnx.TensorProto.FLOAT),
        make("Mul", [cast, names["scale"]], [node.input[1]], f"{node.name} weights"),
    ]
