"""The fingerprint of a model: which calibration belongs to it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from polyencoder.config import WeightDtype
from polyencoder.storage.digests import fingerprint, weights_fingerprint

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel
    from polyencoder.text import TextEncoder


def model_fingerprint(model: RankerModel, text: TextEncoder, *, dtype: WeightDtype = "float32") -> str:
    """Digest of everything a model's scores depend on: weights, settings, tokenizer.

    Float32 graphs of ONNX have their model's; int8 graphs have their own, which their quantization is part of.
    `dtype`: as the weights will be when they have been saved so.
    """
    model = model.merged()
    config = asdict(model.config)
    del config["format_version"]
    if known := model.weights_fingerprints:
        weights = known.get(dtype, known["float32"])
    else:
        import torch

        weights = weights_fingerprint(model.kept_weights(getattr(torch, dtype)))
    return fingerprint([weights, json.dumps(config, sort_keys=True), text.fingerprint()])
