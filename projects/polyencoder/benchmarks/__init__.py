"""Benchmarks, each a command: `python -m polyencoder.benchmarks.scoring [--json] [--quick]`."""

from __future__ import annotations
