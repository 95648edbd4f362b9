"""Patterns for `tokenizers` against Python's own, over characters on which libraries differ."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from polyencoder.importing.patterns import build_lower_case, build_white_space_pattern, keep_matches

# Letters, marks, digits of other scripts, controls and separators: \w and \s of Rust and Oniguruma differ there.
TEXTS = st.text(
    st.sampled_from("aZß9_-.' \t\n\x0b\x1c\x85\xa0\u2028\u3000é\u0301ªº²Ⅷ٣中Σ\u03c3ςİ\u0131ǅŉΩ😀")
    | st.characters(codec="utf-8")
)


@given(TEXTS)
def test_a_pattern_matches_what_it_matches_in_python(text):
    pieces = [piece for piece, _ in keep_matches(r"[\w']+|[^\s]").pre_tokenize_str(text)]
    assert pieces == re.findall(r"[\w']+|[^\s]", text)


# An interpreter has the Unicode of its year: later letters have no case in it, and Ahom's medial ra counts as a letter.
CASED = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\U0001171e")


@given(st.text(st.sampled_from("aZßΣςİǅŉΩʰ\u0345'. ") | CASED))
def test_lower_case_is_pythons(text):
    assert normalizers.Sequence(build_lower_case()).normalize_str(text) == text.lower()


def test_lower_case_of_a_sigma_depends_on_its_place():
    lower = normalizers.Sequence(build_lower_case()).normalize_str
    for text in ("ΟΔΟΣ", "ΟΔΟΣ.", "ΣΟΣ ΣΔ", "Σ", "ΓΣ'Γ", "ΓΣ' Γ", ".Σ.", "ΑΣʰ", "ʰΣ", "ΑΣʰΑ", "Αʰ\u0345Σ"):
        assert lower(text) == text.lower(), text


@given(TEXTS)
def test_white_space_is_pythons(text):
    spaces = pre_tokenizers.Split(Regex(build_white_space_pattern()), behavior="removed")
    assert [piece for piece, _ in spaces.pre_tokenize_str(text)] == text.split()
