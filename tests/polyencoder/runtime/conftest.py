"""The exported rankers of the tests of graphs."""

from __future__ import annotations

from tests.polyencoder.export.onnx.conftest import dialogues, exported, kind, separable  # noqa: F401 - fixtures
