"""A package's names are imported when they are asked for."""

from __future__ import annotations

import pytest

import polyencoder.export.onnx
import polyencoder.index
import polyencoder.text
from polyencoder.text.tokens import pad


def test_a_name_is_that_of_its_module():
    assert polyencoder.text.__getattr__("pad") is pad is polyencoder.text.pad
    with pytest.raises(AttributeError, match="module 'polyencoder.text' has no attribute 'pads'"):
        polyencoder.text.pads  # noqa: B018


def test_a_name_is_asked_for_once(monkeypatch):
    monkeypatch.delattr(polyencoder.text, "pad", raising=False)
    assert polyencoder.text.pad is vars(polyencoder.text)["pad"]


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
