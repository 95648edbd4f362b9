"""What a filter is to find, in Python, and random filters."""

from __future__ import annotations

import operator
import random
from collections.abc import Mapping
from typing import Any

_COMPARED = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}

NUMBERS = [0, 1, 1.0, -1, -1.5, -0.1, 0.5, 2, 17, -17, 255, 1e-320, 2**53, 2**53 + 1, 2.0**53, -(2**53), 10**20, 1e20]
TEXTS = ["", "1", "a", "ab", "b", "\0", "\1", "a\0", "a\1", "\u00e9", "\U0001f642", "x" * 64, "true", "'\"\\"]
LONG = ["x" * 65, "x" * 64 + "y", "y" * 70, 9**999, -(9**999), 9**999 + 1]
VALUES = [None, True, False, *NUMBERS, *TEXTS, *LONG]
KEYS = ["a", "b", "q\"'", "$x"]


def random_metadata(rng: random.Random) -> dict[str, Any]:
    """Metadata with any values."""
    return {key: _random_field(rng) for key in rng.sample(KEYS, rng.randrange(4))}


def random_filter(rng: random.Random, *, levels: int = 2) -> dict[str, Any]:
    """A filter with any operators."""
    if levels and rng.random() < 0.3:
        name, count = rng.choice(["$and", "$or"]), rng.randint(1, 3)
        return {name: [random_filter(rng, levels=levels - 1) for _ in range(count)]}
    return {key: _random_test(rng) for key in rng.sample(KEYS, rng.choice([1, 1, 2]))}


def _random_field(rng: random.Random) -> Any:
    if rng.random() < 0.6:
        return rng.choice(VALUES)
    return rng.choice([{"a": 1}, rng.choices([*VALUES, [1], {"a": 1}], k=rng.randrange(4))])


def _random_test(rng: random.Random) -> Any:
    value, values = rng.choice(VALUES), rng.choices(VALUES, k=rng.randrange(4))
    ranges = {name: rng.choice([*NUMBERS, *TEXTS]) for name in rng.sample([*_COMPARED], rng.randint(1, 2))}
    exists, lists = {"$exists": rng.random() < 0.5}, {rng.choice(["$in", "$nin"]): values}
    return rng.choice([value, values, ranges, ranges, exists, lists, {"$eq": value}, {"$ne": value}])


def passes(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> bool:
    """Whether the fields pass: equal in JSON a value, or any of a list of values, or as operators say."""
    return all(_passes(metadata or {}, *item) for item in filter.items())


def _passes(metadata: Mapping[str, Any], name: str, condition: Any) -> bool:
    if name in ("$and", "$or"):
        return (all if name == "$and" else any)(passes(metadata, part) for part in condition)
    if not isinstance(condition, Mapping):
        return _equals(metadata.get(name), condition)
    return all(_holds(metadata, name, *item) for item in condition.items())


def _holds(metadata: Mapping[str, Any], name: str, operator: str, value: Any) -> bool:
    if operator == "$exists":
        return (name in metadata) == value
    field = metadata.get(name)
    if operator in ("$eq", "$in"):
        return _equals(field, value)
    if operator in ("$ne", "$nin"):
        return not _equals(field, value)
    kinds = (str,) if isinstance(value, str) else (int, float)
    elements = field if isinstance(field, list) else [field]
    return any(
        isinstance(element, kinds) and not isinstance(element, bool) and _COMPARED[operator](element, value)
        for element in elements
    )


def _equals(field: Any, options: Any) -> bool:
    return any(_has(field, value) for value in (options if isinstance(options, list) else [options]))


def _has(field: Any, value: Any) -> bool:
    """In JSON, true is not 1, and 1.0 is. A list has no null: that is a field without a value."""
    within = field if isinstance(field, list) and value is not None else []
    return any(isinstance(entry, bool) == isinstance(value, bool) and entry == value for entry in (field, *within))
