"""Writes a step as an ONNX graph, with the installed torch's exporter.

From torch 2.9 on, where it is the default, `torch.export` follows the step with symbolic sizes. An older torch traces
the step: it records the operators that run for one batch, which must be large enough
(`export._build_token_batches`).

Attention in graphs is an implementation of its own, registered with transformers. In a graph, torch's has a dozen more
operators in each layer: for a mask of [batch, 1, length, length], for scores that are scaled twice, for rows that are
fully masked. None of these is needed here, and all cost time.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.onnx.utils import export as trace  # torch.onnx.export is the current one in newer versions
from transformers import AttentionInterface, AttentionMaskInterface

from polyencoder.errors import get_first_line
from polyencoder.modeling import attention
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.export_steps import Step
from polyencoder.packages import errors_alone, require

NAME = "polyencoder-onnx"  # of the implementation of attention

IS_CURRENT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
OPSET = 20  # the first with GELU as one operator
OPSET_OF_TRACES = 17  # the first with layer normalisation as one operator

_log = logging.getLogger(__name__)


def write_graph(step: Step, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Writes the graph of a step in evaluation mode, whose `axes` may have any size, by a batch of several sequences.

    ConfigError if torch's exporter needs onnxscript, which is not installed.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of all that might go wrong: the check tells whether it did
        if IS_CURRENT and _export_with_torch(step, inputs, path):
            return
        trace(
            step,
            inputs,
            os.fspath(path),
            input_names=list(step.inputs),
            output_names=list(step.outputs),
            dynamic_axes={name: dict(enumerate(step.list_axes(name))) for name in step.inputs + step.outputs},
            opset_version=OPSET_OF_TRACES,
        )


def _export_with_torch(step: Step, inputs: tuple[Tensor, ...], path: Path) -> bool:
    """Writes the graph with torch.export; False, with a warning, if it cannot export the model."""
    require("onnxscript", extra="onnx")
    try:
        with errors_alone("torch.onnx"):  # no advice on optional packages
            program: Any = torch.onnx.export(
                step,
                inputs,
                input_names=list(step.inputs),
                output_names=list(step.outputs),
                dynamic_shapes=tuple(dict(enumerate(step.list_axes(name))) for name in step.inputs),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        _log.warning(
            "torch's ONNX exporter cannot follow this model, which is traced instead: %s", get_first_line(error)
        )
        return False
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # the source files and lines on this machine
    program.save(os.fspath(path), external_data=False)
    return True


def prepare_for_graphs(model: RankerModel) -> RankerModel:
    """A ranker that shares the weights, with encoders that use this attention.

    An encoder with another attention than the rankers', its own or `eager`, keeps it.
    """
    model = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for tower in model.backbones:
        if tower.model.config._attn_implementation == attention.NAME:
            tower.model.set_attn_implementation(NAME)
    return model.eval()


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values [batch, heads, length, dim] -> [batch, length, heads, dim], and no weights."""
    scores = query @ key.transpose(2, 3) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (torch.softmax(scores, dim=-1) @ value).transpose(1, 2), None


def _mask(**options: Any) -> Tensor | None:
    """The attention bias: 0, and the smallest number at padding, [batch, 1, 1, length]."""
    mask: Tensor | None = options.get("attention_mask")
    if mask is None or mask.dim() != 2 or options["mask_function"] is not attention.PADDING_ALONE:
        mask = AttentionMaskInterface()["sdpa"](**options)
        if mask is None:
            return None
    else:
        mask = mask[:, None, None].bool()
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, torch.finfo(torch.float32).min)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
