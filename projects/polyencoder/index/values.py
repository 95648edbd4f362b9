"""Values of metadata as texts that sort as the values do, which every engine of an index compares alike.

Numbers are compared exactly, of whatever size: 1 and 1.0 are equal, 2**53 and 2**53 + 1 are not. Texts are compared by
their code points. A text, a number and a boolean are never equal, and a list is compared by its elements.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

Kind = Literal["text", "number", "boolean", "object"]
"""The kind of a value; values of different kinds are never equal, and no filter asks for objects."""

OBJECT, NULL, EMPTY = "o", "z", ""
"""The texts of an object, of null, which a missing field equals, and of a list without values."""

_LONGEST = 64  # characters of a text, and hexadecimal digits of a number, that are compared; a digest follows
_INVERTED = str.maketrans("0123456789abcdef", "fedcba9876543210")


def get_kind(value: str | float) -> Kind:
    """The kind of a value; the texts of its values begin with the kind's first letter."""
    return "text" if isinstance(value, str) else "boolean" if isinstance(value, bool) else "number"


def find_first_after(kind: Kind) -> str:
    """The first text after the texts of a kind."""
    return chr(ord(kind[0]) + 1)


def list_field_values(value: Any) -> set[str]:
    """The texts of a field: of its value, or of the elements of its list; at least one."""
    if not isinstance(value, list):
        return {format_value_text(value)}
    elements = (element for element in value if element is not None and not isinstance(element, list))
    return {*map(format_value_text, elements)} or {EMPTY}


def format_value_text(value: str | float | dict[str, Any] | None) -> str:
    """The text of a value: of two values of a kind the smaller has the smaller text, without the character NUL.

    A long value is cut and gets a digest: it equals itself alone, and compares rightly with values that do not
    exceed the length (`exceeds`).
    """
    if value is None:
        return NULL
    if isinstance(value, dict):
        return OBJECT
    if isinstance(value, bool):
        return f"b{value:d}"
    if isinstance(value, str):
        cut = value if len(value) <= _LONGEST else value[:_LONGEST] + _hash(value)
        return "t" + cut.replace("\1", "\1\2").replace("\0", "\1\1")
    if value == 0:
        return "n1"
    exponent, digits = _write_hexadecimal(value)
    if len(digits) > _LONGEST:
        digits = digits[:_LONGEST] + _hash(digits)
    text = f"{exponent + (1 << 31):08x}{digits}"
    return f"n2{text}" if value > 0 else f"n0{text.translate(_INVERTED)}g"  # g: after every digit


def exceeds(value: str | float) -> bool:
    """Whether a value is too long to compare others with it."""
    return len(value if isinstance(value, str) else _write_hexadecimal(value)[1]) > _LONGEST


def _write_hexadecimal(value: float) -> tuple[int, str]:
    """The exponent and the digits of a number's size: 0.DIGITS times 16 to the power of the exponent."""
    numerator, denominator = abs(value).as_integer_ratio()  # the latter is a power of two
    bits = denominator.bit_length() - 1
    digits = f"{numerator << -bits % 4:x}"
    return len(digits) - -(-bits // 4), digits.rstrip("0")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
