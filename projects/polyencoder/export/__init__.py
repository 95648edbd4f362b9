"""Exports a trained ranker for production: a model folder with its card, ONNX graphs."""
