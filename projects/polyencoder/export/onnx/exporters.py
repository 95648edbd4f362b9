"""A step as an ONNX graph, by the exporter of the torch that is installed.

From torch 2.9 on, whose own default it is, `torch.export` follows the step with sizes that stand for any. An older
torch traces it: what it does with one batch is written down, so that batch must be large enough
(`export._token_batches`).
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.onnx.utils import export as trace  # torch.onnx.export is the current one in newer versions

from polyencoder.errors import first_line
from polyencoder.modeling.export_steps import Step
from polyencoder.packages import require

__all__ = ["write_graph"]

IS_CURRENT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
OPSET = 20  # the first with GELU as one operator
OPSET_OF_TRACES = 17  # the first with layer normalisation as one operator

_log = logging.getLogger(__name__)


def write_graph(step: Step, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Write the graph of a step, whose `axes` may have any size.

    Args:
        step: in evaluation mode.
        inputs: one batch, of several sequences.
        path: the file.

    Raises:
        ConfigError: torch's exporter needs onnxscript, which is not installed.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of all that might go wrong: the check tells whether it did
        if IS_CURRENT and _exported(step, inputs, path):
            return
        trace(
            step,
            inputs,
            os.fspath(path),
            input_names=list(step.inputs),
            output_names=list(step.outputs),
            dynamic_axes={name: dict(enumerate(step.axes(name))) for name in step.inputs + step.outputs},
            opset_version=OPSET_OF_TRACES,
        )


def _exported(step: Step, inputs: tuple[Tensor, ...], path: Path) -> bool:
    """Write the graph by torch.export. False, with a word in the log, where it cannot follow what an encoder does."""
    require("onnxscript", extra="onnx")
    try:
        with _no_advice():
            program: Any = torch.onnx.export(
                step,
                inputs,
                input_names=list(step.inputs),
                output_names=list(step.outputs),
                dynamic_shapes=tuple(dict(enumerate(step.axes(name))) for name in step.inputs),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        _log.warning("torch's ONNX exporter cannot follow this model, which is traced instead: %s", first_line(error))
        return False
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # which line of which file on this machine it came from
    program.save(os.fspath(path), external_data=False)
    return True


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without what the exporter logs of packages that it could make use of."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
