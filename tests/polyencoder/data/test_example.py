from __future__ import annotations

import pytest

from polyencoder.data.example import Example
from polyencoder.errors import InputError


def test_where_it_is_from_makes_no_other_example():
    one = Example(["hi", "you ?"], "me", ["me", "you"], "a.csv, line 2")
    assert one == Example(["hi", "you ?"], "me", ["me", "you"])
    assert repr(one) == repr(Example(["hi", "you ?"], "me", ["me", "you"], "b.csv, line 3"))  # data's digest
    assert (one.text, one.choices) == ("hi\nyou ?", ["me", "you"])
    assert list(Example(["hi"], "me").choices) == []


@pytest.mark.parametrize("name", ["turns", "candidates"])
def test_one_text_in_the_place_of_a_list(name):
    with pytest.raises(InputError, match=f"{name} is one text, 'hi'; give a list of texts"):
        Example(**{"turns": ["a"], "label": "b", name: "hi"})
