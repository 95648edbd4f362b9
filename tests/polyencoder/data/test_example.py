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


def test_one_right_candidate_of_a_graded_list_is_the_usual_example():
    assert Example.graded(["hi"], ["a", "b"], [0, 1], where="x") == Example(["hi"], "b", ["a", "b"])
    assert Example.graded(["hi"], ["a", "b"], [0, 1]).labels is None
    several = Example.graded(["hi"], ["a", "b", "c"], [1, 0, 2])
    assert (several.label, several.labels, several.right) == ("c", {"a": 1, "c": 2}, ["a", "c"])
    assert several != Example(["hi"], "c", ["a", "b", "c"])
