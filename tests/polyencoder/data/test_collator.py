"""Examples without a choice."""

from __future__ import annotations

import pytest

from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.errors import InputError


@pytest.mark.parametrize(
    ("candidates", "message"), [(None, "no candidates, and no sampler"), (["no"], "'yes' is not among its 1 candidate")]
)
def test_an_example_without_a_choice(text, candidates, message):
    with pytest.raises(InputError, match=message):
        Collator(text, "inline")([Example(["hi"], "yes", candidates)])
