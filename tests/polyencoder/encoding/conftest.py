"""The exported rankers of the tests of graphs."""

from __future__ import annotations

from tests.polyencoder.export.onnx.conftest import (  # noqa: F401 - fixtures
    block_import,
    dialogues,
    exported,
    kind,
    make_exportable,
    separable,
)
