"""Python's character classes and lower-casing as patterns and rules of the `tokenizers` library."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers


def keep_matches(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Keeps what the pattern matches in Python, and drops the text in between; \\w and \\s must be in brackets."""
    pattern = pattern.replace(r"\w", build_class(r"\w")).replace(r"\s", build_class(r"\s"))
    return pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)


def build_white_space_pattern() -> str:
    """A pattern for one character that Python's `str.strip` removes."""
    return f"[{build_class(chr(92) + 's')}]"


def build_lower_case() -> list[normalizers.Normalizer]:
    """Python's `str.lower`, including the final form of the Greek sigma at the end of a word."""
    # As Python does, skip ignored characters before looking for a letter: modifier letters are both.
    letter, ignored = r"[\p{Cased}&&[^\p{Case_Ignorable}]]", r"\p{Case_Ignorable}*"
    before, after = f"(?<={letter}{ignored}Σ)", f"(?!{ignored}{letter})"
    return [normalizers.Replace(Regex(f"Σ{before}{after}"), "ς"), normalizers.Lowercase()]


@lru_cache
def build_class(escape: str, library: Any = re) -> str:
    """The characters that match `\\w` or `\\s` in `re` (or `regex`), as ranges for another library's brackets."""
    surrogates = range(0xD800, 0xE000)  # surrogates: in no text, and not allowed in patterns
    characters = "".join(chr(i) for i in range(0x110000) if i not in surrogates)
    spans = (match.group() for match in library.finditer(f"{escape}+", characters))
    return "".join(f"\\x{{{ord(span[0]):x}}}-\\x{{{ord(span[-1]):x}}}" for span in spans)
