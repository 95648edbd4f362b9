"""Which comments of a dump are left out, and why: PolyAI's lengths, and what is no text that somebody wrote."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyencoder.errors import ConfigError

__all__ = ["REASONS", "Filters"]

REASONS = ("not text", "deleted or removed", "bot", "too short", "too long", "link", "quote", "code")
"""Why a comment is left out, in the order in which it is looked at."""

_DELETED = {"[deleted]", "[removed]"}
_BOT = re.compile(r"bot\d*$|^automoderator$|^autowikibot$", re.IGNORECASE)
_LINK = re.compile(r"https?://|www\.|\[[^\]]*\]\([^)]*\)", re.IGNORECASE)
_QUOTE = re.compile(r"^\s*>", re.MULTILINE)
_CODE = re.compile(r"```|`[^`]+`|^(?: {4}|\t)\S", re.MULTILINE)


@dataclass(frozen=True)
class Filters:
    """What a comment must be: of at least and at most so many characters, and without what is not kept."""

    min_length: int = 9
    max_length: int = 127
    keep_bots: bool = False
    keep_links: bool = False
    keep_quotes: bool = False
    keep_code: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise ConfigError(
                f"min_length is {self.min_length} and max_length {self.max_length}; they must be at least 1, and in "
                "this order",
                argument="min_length",
            )

    def text(self, body: Any, author: Any) -> str:
        """What somebody wrote, its lines joined by spaces, as characters and not as HTML's names for them.

        Raises:
            LeftOut: it is left out.
        """
        if not isinstance(body, str) or not body.strip():
            raise LeftOut("not text")
        if body.strip() in _DELETED or author in _DELETED:
            raise LeftOut("deleted or removed")
        if not self.keep_bots and isinstance(author, str) and _BOT.search(author):
            raise LeftOut("bot")
        raw = html.unescape(body)
        text = " ".join(raw.split())
        if not any(character.isalnum() for character in text):
            raise LeftOut("not text")
        if len(text) < self.min_length:
            raise LeftOut("too short")
        if len(text) > self.max_length:
            raise LeftOut("too long")
        for reason, kept, pattern in (
            ("link", self.keep_links, _LINK),
            ("quote", self.keep_quotes, _QUOTE),
            ("code", self.keep_code, _CODE),
        ):
            if not kept and pattern.search(raw):
                raise LeftOut(reason)
        return text

    def of_record(self, record: Mapping[str, Any]) -> str:
        """The text of a comment (`body`) or of a submission (`title`)."""
        return self.text(record.get("body", record.get("title")), record.get("author"))


class LeftOut(Exception):
    """A comment is left out: one of `REASONS`."""
