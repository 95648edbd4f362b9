from __future__ import annotations

import pytest

from polyencoder.data.readers import BadExamples, raise_it
from polyencoder.errors import InputError


def test_the_first_error_is_raised_unless_told_to_skip():
    bad = BadExamples()
    error = InputError("a.csv, line 3: has 2 cells")
    with pytest.raises(InputError) as raised:
        bad(error)
    assert raised.value is error
    assert bad.count == 1


def test_skipped_ones_are_counted_and_the_first_is_told():
    bad = BadExamples(skip=True)
    assert bad.summarize() is None
    bad(InputError("a.csv, line 3: has 2 cells"))
    assert bad.summarize() == "1 bad record was left out; the first: a.csv, line 3: has 2 cells"
    for number in range(1233):
        bad(InputError(f"a.csv, line {number + 4}: another"))
    bad(InputError("a.csv, line 3: has 2 cells"))  # once, however often it is read
    assert bad.count == 1234
    assert bad.summarize() == "1,234 bad records were left out; the first: a.csv, line 3: has 2 cells"


def test_an_error_is_shown_without_the_exception_that_led_to_it():
    try:
        int("x")
    except ValueError:
        with pytest.raises(InputError) as raised:
            raise_it(InputError("not a number"))
    assert raised.value.__suppress_context__
