"""A package's names are imported when they are asked for."""

from __future__ import annotations

import pytest

import polyencoder.export.onnx
import polyencoder.index
import polyencoder.text
from polyencoder.text.tokens import TokenBatch


def test_a_name_is_that_of_its_module():
    assert polyencoder.text.__getattr__("TokenBatch") is TokenBatch is polyencoder.text.TokenBatch
    with pytest.raises(AttributeError, match="module 'polyencoder.text' has no attribute 'TokenBatches'"):
        polyencoder.text.TokenBatches  # noqa: B018


def test_a_name_is_asked_for_once(monkeypatch):
    monkeypatch.delattr(polyencoder.text, "TokenBatch", raising=False)
    assert polyencoder.text.TokenBatch is vars(polyencoder.text)["TokenBatch"]


def test_a_module_is_an_attribute_as_of_any_package():
    """`polyencoder.text.options`, although nothing has imported it."""
    import polyencoder.text.options as options

    assert polyencoder.text.__getattr__("options") is options


@pytest.mark.parametrize("package", [polyencoder, polyencoder.text, polyencoder.index, polyencoder.export.onnx])
def test_every_name_is_there(package):
    assert {*package.__all__, "__name__"} <= {*dir(package)}  # tab completion
    assert {*package.__all__} - {"__version__"} == {*package._MODULES}
    for name in package.__all__:
        assert getattr(package, name) is not None
