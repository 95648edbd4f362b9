"""Commands and flags that no longer exist, each with what to use in their place."""

from __future__ import annotations

COMMANDS: dict[str, str] = {}
"""Each removed command's replacement, a sentence without its full stop."""

FLAGS: dict[str, str] = {}
"""Each removed flag's replacement, for every command that had it."""
