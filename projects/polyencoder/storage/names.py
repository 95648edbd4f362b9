"""The names of a model folder's files."""

from __future__ import annotations

CONFIG, WEIGHTS, TOKENIZER = "polyencoder.json", "polyencoder.safetensors", "tokenizer.json"
"""The configuration of a ranker; its tensors that belong to no module of sentence-transformers (`modeling.layout`)."""
MODULE_CONFIG, MODULE_WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
"""The files of an encoder of transformers, and of modules of sentence-transformers."""
MODEL_FILES = ["*.json", "*.safetensors", "README.md", "*.svg"]
"""Patterns of all files of a model, with its card, for downloads."""
RECORD = "training/run.json"
"""Optional: the options and starts of the run that trained the model."""
CALIBRATION = "calibration.json"
"""Optional: see `polyencoder.calibration`."""
CONTEXT, CANDIDATES, SCORER = "context.onnx", "candidates.onnx", "scorer.onnx"
"""ONNX graphs: for contexts, candidates, and pairs of both."""
DIGESTS = "polyencoder"
"""The key in the metadata of `WEIGHTS` with the digests of the folder's files and of all weights."""
