"""Faster and smaller transformers on a CPU."""
