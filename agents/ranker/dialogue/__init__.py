"""Converts ParlAI's messages to examples and candidates, and computes metrics of answers."""
