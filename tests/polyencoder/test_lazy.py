"""A package's names are imported when they are asked for."""

from __future__ import annotations

import pytest

import polyencoder.text
from polyencoder.lazy import lazy_names
from polyencoder.text.tokens import pad


def test_a_name_is_that_of_its_module():
    get = lazy_names("polyencoder.text", {"pad": "tokens"})
    assert get("pad") is pad is polyencoder.text.pad
    with pytest.raises(AttributeError, match="module 'polyencoder.text' has no attribute 'pads'"):
        get("pads")


def test_a_module_is_an_attribute_as_of_any_package():
    """`polyencoder.text.options`, although nothing has imported it."""
    import polyencoder.text.options as options

    assert lazy_names("polyencoder.text", {})("options") is options


def test_every_name_is_there():
    for name in polyencoder.text.__all__:
        assert getattr(polyencoder.text, name) is not None
