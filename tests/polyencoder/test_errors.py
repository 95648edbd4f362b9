"""Errors of ours where others are expected: in ParlAI's place, and in torch's."""

from __future__ import annotations

import pytest

from polyencoder import errors

KINDS = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_catches_parlais_errors_catches_ours(kind):
    for expected in (RuntimeError, errors.PolyencoderError, kind):
        with pytest.raises(expected, match="what to do"):
            raise kind("what to do")


def test_bad_values_are_value_errors_too():
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.ConfigError, ValueError)
