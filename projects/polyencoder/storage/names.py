"""The names of a model folder's files."""

from __future__ import annotations

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
CALIBRATION = "calibration.json"
"""Optional: see `polyencoder.calibration`."""
"""That of its int8 graphs."""
CONTEXT, CANDIDATES, SCORER = "context.onnx", "candidates.onnx", "scorer.onnx"
"""ONNX graphs: for contexts, candidates, and pairs of both."""
DIGESTS = "polyencoder"
"""The key of the weights' metadata that holds digests of the folder's files."""
