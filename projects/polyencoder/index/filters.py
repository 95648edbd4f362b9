"""Filters by metadata, and how a result was found.

`parse_filter` checks a filter and makes a `Group` of tests of it, which each engine writes in its own language, and
`passes` evaluates in Python. All compare the texts of `index.values`, so they agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, count
from operator import ge, gt, le, lt
from typing import Any, Literal, NamedTuple, get_args

from polyencoder.checks import explain_unencodable
from polyencoder.errors import InputError
from polyencoder.index.entries import convert_value
from polyencoder.index.values import Kind, exceeds, format_value_text, get_kind, list_field_values

Exactness = Literal["exact", "certified", "approximate"]
"""How a result was found: by scoring everything, by a shortlist with a proof, or by one without."""

Filter = Mapping[str, Any]
"""Metadata fields and what each must be: a value, one value of a list, or operators, such as
`{"lang": ["de", "fr"], "year": {"$gte": 2020, "$lt": 2024}}`. "$and" and "$or" have lists of filters."""

COMPARE: dict[str, Callable[[str, str], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}

MAX_TESTS = 100
"""Fields and operators of a filter: databases limit the size of a condition."""
_MAX_LEVELS = 10  # of "$and" and "$or"
_OPERATORS = ("$eq", "$ne", "$in", "$nin", *COMPARE, "$exists")


class FieldTest(NamedTuple):
    """A test of one metadata field."""

    key: str
    operator: str
    """One of "$in", "$nin", "$gt", "$gte", "$lt", "$lte" or "$exists"; "$eq" and "$ne" are lists of one value."""
    values: tuple[Any, ...]


class Group(NamedTuple):
    """Tests that must all hold ("$and"), or any of them ("$or")."""

    operator: Literal["$and", "$or"]
    parts: tuple[FieldTest | Group, ...]

    def iter_tests(self) -> Iterator[FieldTest]:
        """All tests, of groups in it, too."""
        for part in self.parts:
            if isinstance(part, Group):
                yield from part.iter_tests()
            else:
                yield part


def parse_filter(filter: Filter | None) -> Group:
    """A filter as tests, with values as metadata store them (dates as text). InputError if it is invalid."""
    return _parse_group("$and", () if filter is None else (filter,), levels=_MAX_LEVELS, numbers=count(1))


def passes(metadata: Mapping[str, Any], group: Group) -> bool:
    """Whether metadata pass a filter's tests."""
    results = (passes(metadata, part) if isinstance(part, Group) else _holds(metadata, part) for part in group.parts)
    return all(results) if group.operator == "$and" else any(results)


def write_group(group: Group, write: Callable[[FieldTest], str]) -> str:
    """A filter in a language that has AND, OR and parentheses; `write` writes a test. The empty text for no test."""
    parts = (write_group(part, write) if isinstance(part, Group) else write(part) for part in group.parts)
    return (" AND " if group.operator == "$and" else " OR ").join(f"({part})" for part in parts)


def check_fields(filter: Filter | None, *, has_field: Callable[[str, Collection[Kind]], bool]) -> None:
    """Checks that candidates have the fields of a filter, with values of a kind that it asks for.

    `has_field` is `Index.has_field`. A field may be missing where a value is None, which a missing field equals, and
    where its existence is tested. One that is null or an empty list for all candidates has no kind: any may come.

    Raises:
        InputError: no candidate has a field, or all have values of other kinds in it.
    """
    for key, operator, values in parse_filter(filter).iter_tests():
        kinds = {get_kind(value) for value in values if value is not None}
        if operator == "$exists" or None in values or has_field(key, kinds):
            continue
        if not has_field(key, ()):
            raise _make_error(f"cannot filter by {key!r}: no candidate of the index has this metadata field")
        if stored_kinds := " and ".join(f"{kind}s" for kind in get_args(Kind) if has_field(key, (kind,))):
            raise _make_error(
                f"cannot filter by {key!r}: {values[0]!r:.60} is a {get_kind(values[0])}, and in this metadata field "
                f"the candidates have {stored_kinds} alone, which are not compared with one"
            )


def _holds(metadata: Mapping[str, Any], test: FieldTest) -> bool:
    if test.operator == "$exists":
        return (test.key in metadata) == test.values[0]
    stored = list_field_values(metadata.get(test.key))
    if test.operator in ("$in", "$nin"):
        return stored.isdisjoint(map(format_value_text, test.values)) == (test.operator == "$nin")
    (value,) = test.values
    bound, compare = format_value_text(value), COMPARE[test.operator]
    return any(compare(text, bound) for text in stored if text[:1] == bound[0])


def _parse_group(operator: Literal["$and", "$or"], filters: Any, *, levels: int, numbers: Iterator[int]) -> Group:
    """Filters as a group. `numbers` numbers the tests, so that an error ends the reading of very many."""
    if levels == 0:
        raise _make_error(f"filter has more than {_MAX_LEVELS} levels of $and and $or")
    groups = []
    for filter in filters:
        if not isinstance(filter, Mapping):
            raise _make_error(f"filter is {filter!r:.60}; it must be a dict, such as {{'lang': 'en', 'n': [1, 2]}}")
        fields = (_parse_parts(key, value, levels=levels, numbers=numbers) for key, value in filter.items())
        parts = []
        for part in chain.from_iterable(fields):
            if isinstance(part, FieldTest) and next(numbers) > MAX_TESTS:
                raise _make_error(f"filter has more than {MAX_TESTS} fields and operators")
            parts.append(part)
        groups.append(Group("$and", tuple(parts)))
    return groups[0] if len(groups) == 1 else Group(operator, tuple(groups))


def _parse_parts(key: Any, value: Any, *, levels: int, numbers: Iterator[int]) -> Iterator[FieldTest | Group]:
    """The tests of a field, or the group of "$and" or "$or"."""
    if not isinstance(key, str):
        raise _make_error(f"cannot filter by {key!r:.60}: a metadata field's name is a text")
    if key == "$and" or key == "$or":
        if not isinstance(value, (list, tuple)) or not value or not all(value):
            raise _explain_wrong(key, value, "it has a list of filters, none of them empty")
        yield _parse_group("$and" if key == "$and" else "$or", value, levels=levels - 1, numbers=numbers)
    elif isinstance(value, Mapping):
        if not value or not all(name in _OPERATORS for name in value):
            raise _explain_wrong(key, dict(value), f"a dict has operators, of {', '.join(_OPERATORS)}")
        for name, operand in value.items():
            yield _parse_operator(key, name, _convert(operand))
    else:
        value = _convert(value)
        values = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
        yield FieldTest(key, "$in", tuple(_check_value(key, _convert(member)) for member in values))


def _parse_operator(key: str, name: str, operand: Any) -> FieldTest:
    if name in ("$in", "$nin"):
        if not isinstance(operand, (list, tuple, set, frozenset)):
            raise _explain_wrong(key, operand, f"{name} has a list of values")
        return FieldTest(key, name, tuple(_check_value(key, _convert(member)) for member in operand))
    _check_value(key, operand)
    if name == "$exists":
        if not isinstance(operand, bool):
            raise _explain_wrong(key, operand, "$exists is true or false")
        return FieldTest(key, "$exists", (operand,))
    if name in ("$eq", "$ne"):
        return FieldTest(key, "$in" if name == "$eq" else "$nin", (operand,))
    if operand is None or isinstance(operand, bool):
        raise _explain_wrong(key, operand, f"{name} compares with a number or a text")
    if exceeds(operand):
        raise _explain_wrong(
            key, operand, f"{name} compares with a text of at most 64 characters, or a number of 256 bits"
        )
    return FieldTest(key, name, (operand,))


def _check_value(key: str, value: Any) -> Any:
    """A value that a metadata field may equal. InputError for others."""
    if (
        not isinstance(value, (str, int, float, type(None)))
        or (isinstance(value, float) and not math.isfinite(value))
        or any(explain_unencodable(text) for text in (key, value) if isinstance(text, str))
    ):
        raise _explain_wrong(
            key, value, "a filter has, for each name, a text, a finite number, true, false, null or a list of those"
        )
    return value


def _convert(value: Any) -> Any:
    """A value as metadata store it; unchanged if they cannot."""
    if isinstance(value, (str, int, float, list, tuple, set, frozenset, type(None))):
        return value
    try:
        return _convert(convert_value(value))  # numpy's dates are Python's first
    except TypeError:
        return value


def _explain_wrong(key: str, value: Any, what: str) -> InputError:
    return _make_error(f"cannot filter by {key!r:.60}: {value!r:.60}; {what}")


def _make_error(message: str) -> InputError:
    return InputError(message, argument="filter")
