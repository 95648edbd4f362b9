"""The exported rankers of the tests of graphs."""

from __future__ import annotations

from tests.polyencoder.export.onnx.conftest import exported, make_exportable  # noqa: F401 - fixtures
