"""What is left out of a dump, and why."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.pretraining.reddit.filters import REASONS, Filters, LeftOut


@pytest.mark.parametrize(
    ("body", "author", "reason"),
    [
        (None, "a", "not text"),
        ("  ", "a", "not text"),
        ("?!?!?!?!?!?!", "a", "not text"),
        ("[deleted]", "a", "deleted or removed"),
        ("[removed]", "a", "deleted or removed"),
        ("a fine comment", "[deleted]", "deleted or removed"),
        ("a fine comment", "AutoModerator", "bot"),
        ("a fine comment", "RemindMeBot", "bot"),
        ("eight ch", "a", "too short"),
        ("x" * 128, "a", "too long"),
        ("look at https://x.org please", "a", "link"),
        ("look at [this](/r/this) please", "a", "link"),
        ("&gt; you said\n\nand I say no", "a", "quote"),
        ("try `ls -l` there", "a", "code"),
        ("so:\n\n    make all", "a", "code"),
    ],
)
def test_why_a_comment_is_left_out(body, author, reason):
    assert reason in REASONS
    with pytest.raises(LeftOut, match=f"^{reason}$"):
        Filters().text(body, author)
    keep = {"keep_bots": True, "keep_links": True, "keep_quotes": True, "keep_code": True}
    if reason in ("bot", "link", "quote", "code"):
        assert Filters(**keep).text(body, author)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("nine char", "nine char"),
        ("x" * 127, "x" * 127),
        ("one &amp; two\n\nthree", "one & two three"),
        ("1 &lt; 2 is true", "1 < 2 is true"),
        ("robots are fun", "robots are fun"),
    ],
)
def test_what_is_kept_is_one_line_of_text(body, expected):
    assert Filters().text(body, "robothead") == expected


def test_lengths_that_cannot_be():
    with pytest.raises(ConfigError, match="min_length is 10 and max_length 9"):
        Filters(10, 9)
