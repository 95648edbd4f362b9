from __future__ import annotations

import pytest

from polyencoder.text import lines_of, same


@pytest.mark.parametrize("other", ["Hi  there !", " hi there !\t", "HI THERE !", "hi\u00a0there !"])
def test_the_same_answer(other):
    assert same(other) == same("hi there !")


def test_other_answers():
    assert len({same(text) for text in ("hi there !", "hi there", "hithere !", "hi there ! hi there !")}) == 4


def test_the_lines_of_a_context():
    assert lines_of(["your persona: I ski .\n Hi !", "", "hi !"]) == {"your persona: i ski .", "hi !"}
    assert lines_of("Hi !\r\nyou ?") == {"hi !", "you ?"}
