"""Dynamic int8 quantization of ONNX graphs for CPUs: weights rounded once, activations at run time."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyencoder.encoding.graph_files import DESCRIPTION, HOW_TO_EXPORT, QUANTIZATION, get_int8_name, read_description
from polyencoder.errors import CheckpointError, get_first_line
from polyencoder.packages import require
from polyencoder.storage.digests import compute_file_digest
from polyencoder.storage.publish import publishing

AXES, TINY = "last axis", "smallest number"  # constants of a graph


def quantize_int8(folder: str | os.PathLike[str]) -> None:
    """Quantizes each float32 graph of a folder that `export_onnx` wrote to `*.int8.onnx`, for `backend="onnx-int8"`.

    The weights of the linear layers become int8, with a scale for each of their outputs, and so do embeddings, with a
    scale for each token. The linear layers compute in int8; embeddings are stored in int8 alone. Activations have a
    scale for a whole batch, so that a text's vector depends a little on the texts beside it; in feed-forward blocks
    each token is scaled by itself before.

    CheckpointError for a missing file of the export, ConfigError without onnx or onnxruntime.
    """
    source = Path(folder)
    onnx = require("onnx", extra="onnx")
    quantization = require("onnxruntime.quantization", extra="onnx")
    description = read_description(source)
    graphs = {name: _read_graph(source / name, onnx) for name in description.differences}
    digests = dict(description.graphs)
    with publishing(source) as staging:
        for name, graph in graphs.items():
            _store_embeddings(graph, onnx)
            _scale_tokens(graph, onnx)
            path = staging / get_int8_name(name)
            quantization.quantize_dynamic(
                graph,
                path,
                op_types_to_quantize=["MatMul"],  # nn.Linear; of vectors it is a Gemm, which is made a MatMul before
                per_channel=True,
                # 7 bits of the 8: on x86 before VNNI the products of 8 overflow, and nothing says so
                reduce_range=True,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # for types that it cannot infer
            )
            quantized = onnx.load(path)
            del quantized.graph.value_info[:]  # shapes that it inferred, as onnxruntime does again
            onnx.save(quantized, path)
            digests[get_int8_name(name)] = compute_file_digest(path)
        description = replace(description, graphs=digests, quantization=QUANTIZATION)
        (staging / DESCRIPTION).write_text(description.to_json(), encoding="utf-8")


def _read_graph(path: Path, onnx: Any) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: no {path.name} in it: nothing to quantize; {HOW_TO_EXPORT}")
    try:
        graph = onnx.load(path)
    except Exception as error:  # protobuf's implementations raise different exceptions
        raise CheckpointError(f"{path}: not a readable ONNX graph ({get_first_line(error)}); export again") from None
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


def _scale_tokens(graph: Any, onnx: Any) -> None:
    """Divides what goes into feed-forward layers by each token's largest value, and multiplies what comes out by it.

    These are the linear layers with other numbers of inputs and outputs. A few tokens have outliers there, for which a
    scale for all tokens is too coarse: it caused more than half of what int8 changed in a vector. In attention, whose
    layers are square, it matters less.
    """
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    axes_are_input = next(opset.version for opset in graph.opset_import if not opset.domain) >= 18
    shapes = {weight.name: tuple(weight.dims) for weight in graph.graph.initializer if len(weight.dims) == 2}
    nodes = []
    for node in graph.graph.node:
        shape = shapes.get(node.input[1]) if node.op_type == "MatMul" else None
        if shape is None or shape[0] == shape[1]:
            nodes.append(node)
            continue
        source, result = node.input[0], node.output[0]
        absolute, largest, scale, scaled = (f"{result} {name}" for name in ("absolute", "largest", "scale", "scaled"))
        node.input[0], node.output[0] = scaled, f"{result} unscaled"
        last = {} if axes_are_input else {"axes": [-1]}
        nodes += [
            make("Abs", [source], [absolute], absolute),
            make("ReduceMax", [absolute, *([AXES] if axes_are_input else [])], [largest], largest, keepdims=1, **last),
            make("Max", [largest, TINY], [scale], scale),  # of a token of zeros
            make("Div", [source, scale], [scaled], scaled),
            node,
            make("Mul", [node.output[0], scale], [result], f"{result} rescaled"),
        ]
    constants = {AXES: np.array([-1], np.int64), TINY: np.array(np.finfo(np.float32).tiny)}
    graph.graph.initializer.extend(tensor(value, name) for name, value in constants.items())
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


def _store_embeddings(graph: Any, onnx: Any) -> None:
    """Replaces embeddings by int8 ones. Only the rows that are looked up are dequantized."""
    make = onnx.helper.make_node
    weights = {weight.name: weight for weight in graph.graph.initializer}
    uses = Counter(name for node in graph.graph.node for name in node.input)
    nodes = []
    for node in graph.graph.node:
        lookup = node.op_type == "Gather" and not any(attr.name == "axis" and attr.i for attr in node.attribute)
        weight = weights.get(node.input[0]) if lookup and uses[node.input[0]] == 1 else None
        if weight is None or len(weight.dims) != 2 or weight.data_type != onnx.TensorProto.FLOAT:
            nodes.append(node)
            continue
        values = onnx.numpy_helper.to_array(weight)
        scale = np.maximum(np.abs(values).max(1, keepdims=True) / 127, np.finfo(np.float32).tiny)
        parts = {"int8": np.rint(values / scale).astype(np.int8), "scale": scale.astype(np.float32)}
        graph.graph.initializer.remove(weight)
        rows = {kind: f"{node.output[0]} {kind}" for kind in parts}
        for kind, array in parts.items():
            stored = f"{weight.name} {kind}"
            graph.graph.initializer.append(onnx.numpy_helper.from_array(array, stored))
            nodes.append(make("Gather", [stored, node.input[1]], [rows[kind]], f"{node.name} {kind}", axis=0))
        cast = f"{rows['int8']} float"
        nodes += [
            make("Cast", [rows["int8"]], [cast], f"{node.name} float", to=onnx.TensorProto.FLOAT),
            make("Mul", [cast, rows["scale"]], [node.output[0]], f"{node.name} rows"),
        ]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
