"""The fingerprints of a model: which calibration and which index belong to it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from polyencoder.config import WeightDtype
from polyencoder.modeling.encoder_config import DROPOUT
from polyencoder.storage.digests import compute_fingerprint, compute_weights_fingerprint, iter_weight_parts

if TYPE_CHECKING:
    from polyencoder.encoding.graphs import GraphModel
    from polyencoder.modeling.base import RankerModel
    from polyencoder.text import TextEncoder


def compute_model_fingerprint(
    model: RankerModel | GraphModel, text: TextEncoder, *, dtype: WeightDtype = "float32"
) -> str:
    """Digest of everything a model's scores depend on: weights, settings, tokenizer.

    Float32 graphs of ONNX have their model's; int8 graphs have their own, which their quantization is part of.
    `dtype`: in which the weights are saved.
    """
    merged: Any = model.merge_adapters()
    config = asdict(merged.config)
    del config["format_version"]
    if stored := merged.weights_fingerprints:
        weights = stored.get(dtype, stored["float32"])
    else:
        import torch

        weights = compute_weights_fingerprint(merged.get_state_dict_to_save(getattr(torch, dtype)))
    return compute_fingerprint([weights, json.dumps(config, sort_keys=True), text.compute_fingerprint()])


def compute_candidate_fingerprint(model: RankerModel, text: TextEncoder) -> str:
    """Digest of everything a candidate's vector depends on: the tower's weights, the reduction, the tokenizer."""
    if model.config.foreign_fingerprint is not None:
        return model.config.foreign_fingerprint
    if model.candidate_fingerprint is not None:  # ONNX graphs store their model's
        return model.candidate_fingerprint
    model = model.merge_adapters().copy_for_saving()
    config = model.config
    backbone = {name: value for name, value in config.backbone.items() if name not in DROPOUT}
    convert = None if config.convert is None else replace(config.convert, dropout=0.0)
    pooling = (config.reduction, config.reduction_outputs, (config.prompt_tokens or (0, 0))[1], config.dense)
    lengths = (config.vector_dim, config.normalize, config.output_scaling)
    parts: list[bytes | memoryview | str] = [text.compute_fingerprint(contexts=False)]
    parts.append(repr((backbone, convert, pooling, lengths)))
    for module in model.candidate_modules():
        parts += iter_weight_parts(module.state_dict())
    return compute_fingerprint(parts)
