"""JSON that says its version: what is made of it, and what is wrong with another."""

from __future__ import annotations

import pytest

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.storage.versioned import versioned


def made(values):
    if values["n"] < 0:
        raise ConfigError("n is -1; it must be at least 0\nand more")
    return values


@pytest.mark.parametrize("text", ['{"format_version": 2, "n": 1}', b'{"format_version": 2, "n": 1}'])
def test_what_is_made_has_no_version(text):
    assert versioned(text, made, version=2, origin="it", remedy="make it again") == {"n": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"damaged \(JSONDecodeError: Expecting value: .*\); make it again$"),
        (b"\xff", r"damaged \(UnicodeDecodeError: .*\); make it again$"),
        ("[" * 100_000, r"damaged \(RecursionError: .*\); make it again$"),
        ("[]", r"damaged \(TypeError: .*\); make it again$"),
        ("3", r"damaged \(AttributeError: .*\); make it again$"),
        ('{"n": 1}', r"damaged \(KeyError: 'format_version'\); make it again$"),
        ('{"format_version": 2}', r"damaged \(KeyError: 'n'\); make it again$"),
        ('{"format_version": 2, "n": -1}', r"damaged \(ConfigError: n is -1; it must be at least 0\); make it again$"),
        (
            '{"format_version": 3, "n": -1}',
            "format version 3, but this version of polyencoder reads 2; install the version that wrote it, or make it "
            "again$",
        ),
    ],
)
def test_another_text_is_an_error_that_says_what_to_do(text, message):
    with pytest.raises(CheckpointError, match=f"^it: {message}"):
        versioned(text, made, version=2, origin="it", remedy="make it again")
