"""The fields of nested settings: names, types, limits and what they need."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import pytest
from cyclopts import Parameter

from polyencoder.settings.fields import Hidden, get_group, get_leaves, iter_parts, split_commas, split_numbers
from polyencoder.settings.metadata import Needs, Parlai, Without
from polyencoder.validation import Count


@dataclasses.dataclass(frozen=True)
class Inner:
    size: Count = 3
    """How
    many."""
    eps: Annotated[float, Hidden] = 0.5


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    kind: Annotated[Literal["a", "b"] | None, Parameter(name="--which-kind"), Parlai("k", theirs=True)] = None
    inner: Annotated[Inner, Needs("kind")] = dataclasses.field(default_factory=Inner)


def test_nested_settings_have_flat_names():
    leaves = get_leaves(Outer)
    assert {name: leaf.path for name, leaf in leaves.items()} == {
        "name": ("name",),
        "which_kind": ("kind",),
        "size": ("inner", "size"),
        "inner.eps": ("inner", "eps"),  # without a flag
    }
    assert [leaf.has_flag for leaf in leaves.values()] == [True, True, True, False]
    assert [leaf.owner for leaf in leaves.values()] == [Outer, Outer, Inner, Inner]
    assert leaves["name"].default is dataclasses.MISSING
    assert (leaves["size"].default, leaves["size"].help) == (3, "How many.")
    assert leaves["which_kind"].choices == ("a", "b")
    assert leaves["size"].choices == ()


def test_what_a_group_needs_each_of_its_settings_needs():
    leaves = get_leaves(Outer)
    assert leaves["size"].get_metadata(Needs) == leaves["inner.eps"].get_metadata(Needs) == [Needs("kind")]
    assert leaves["name"].get_metadata(Needs) == leaves["size"].get_metadata(Without) == []


def test_only_settings_that_say_so_are_parlais():
    leaves = get_leaves(Outer)
    assert leaves["which_kind"].parlai == Parlai("k", theirs=True)
    assert leaves["name"].parlai is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1,2", ("1", "2")),
        (" 1, 2", ("1", "2")),
        (["1,2"], ("1", "2")),
        (["1", "2,3"], ("1", "2", "3")),
        ("1", ("1",)),
        ((1, 2), (1, 2)),
        ([], []),
        (3, 3),
    ],
)
def test_numbers_with_commas(value, expected):
    assert split_commas(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(3, (3,)), (0.5, (0.5,)), ("1,2", ("1", "2")), ([1, 2], [1, 2])])
def test_a_single_number_of_a_file(value, expected):
    assert split_numbers(value) == expected


def test_the_parts_of_a_type():
    assert list(iter_parts(Annotated[int, "x"] | None)) == ["x", int, type(None)]
    assert get_group(Annotated[Inner, "x"]) is Inner
    assert get_group(int) is get_group(Inner | None) is None
