"""The exported rankers of the tests of graphs."""

from __future__ import annotations

from tests.polyencoder.export.onnx.conftest import exported, trace_candidates  # noqa: F401 - fixtures
