"""A trained ranker for production: a folder with its card, ONNX graphs."""
