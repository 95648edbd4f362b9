from __future__ import annotations

import pytest
import torch

from polyencoder.data.example import Example
from polyencoder.errors import InputError


def test_where_it_is_from_makes_no_other_example():
    example = Example(["hi", "you ?"], "me", ["me", "you"], "a.csv, line 2")
    assert example == Example(["hi", "you ?"], "me", ["me", "you"])
    assert repr(example) == repr(Example(["hi", "you ?"], "me", ["me", "you"], "b.csv, line 3"))  # data's digest
    assert (example.text, example.choices) == ("hi\nyou ?", ["me", "you"])
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


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "2"])
def test_labels_are_those_of_right_texts(wrong):
    with pytest.raises(InputError, match="the label of 'no' is "):
        Example(["hi"], "yes", labels={"yes": 1, "no": wrong})
    if wrong != 0:
        with pytest.raises(InputError, match="label 1 is "):
            Example.graded(["hi"], ["yes", "no"], [1, wrong])


@pytest.mark.parametrize(("wrong", "size"), [(1e300, "large"), (10**400, "large"), (3.5e38, "large"), (1e-60, "small")])
def test_labels_are_numbers_of_float32(wrong, size):
    """Or they would be infinite, or 0, in the loss."""
    with pytest.raises(InputError, match=rf"the label of 'no' is .*, too {size} for float32"):
        Example(["hi"], "no", labels={"yes": 1, "no": wrong})
    with pytest.raises(InputError, match=rf"label 1 is .*, too {size} for float32"):
        Example.graded(["hi"], ["a", "b", "c"], [0, wrong, 1])


@pytest.mark.parametrize("right", [1e38, 1.2e-38, 5])
def test_labels_that_float32_holds(right):
    label = Example.graded(["hi"], ["a", "b"], [0.0, right]).labels["b"]
    assert torch.tensor(label, dtype=torch.float32).item() == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("labels", [{}, {"no": 1}, {"yes": 1, "no": 2}])
def test_the_label_is_one_of_the_best(labels):
    with pytest.raises(InputError, match="'yes' is not the text with the highest of the labels"):
        Example(["hi"], "yes", labels=labels)
