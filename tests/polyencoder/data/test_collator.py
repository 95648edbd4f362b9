"""An example of training."""

from __future__ import annotations

import pytest

from polyencoder.data.example import Example
from polyencoder.errors import InputError


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (("hello", "hi"), "turns is one text, 'hello'; give a list of texts"),
        ((["hello"], "hi", "abc"), "candidates is one text, 'abc'; give a list of texts"),
    ],
)
def test_a_text_is_no_list_of_texts(example, message):
    with pytest.raises(InputError, match=message):
        Example(*example)
