"""Reads JSON that says the version of its format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from polyencoder.errors import CheckpointError, first_line

T = TypeVar("T")


def versioned(
    text: str | bytes, make: Callable[[dict[str, Any]], T], *, version: int, origin: object, remedy: str
) -> T:
    """What `make` makes of a JSON object's values, without its `format_version`.

    Args:
        text: of the JSON.
        make: an error of its own, such as KeyError or ConfigError, means that the values are damaged.
        version: the only one that is read.
        origin: the file, for errors, which end with the `remedy`.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    try:
        values = json.loads(text)
        if (found := values.pop("format_version")) == version:
            return make(values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{origin}: damaged ({type(error).__name__}: {first_line(error)}); {remedy}") from None
    raise CheckpointError(
        f"{origin}: format version {found!r}, but this version of polyencoder reads {version}; install the version "
        f"that wrote it, or {remedy}"
    )
