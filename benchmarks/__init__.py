"""Benchmarks, each a command: `python -m benchmarks.scoring [--json] [--quick]`."""

from __future__ import annotations
