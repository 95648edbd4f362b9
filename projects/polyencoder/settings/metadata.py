"""Metadata of settings, for the type of a field: `Annotated[int, Needs("index")]`.

The library states here what a command line and ParlAI's agents do with its options, and imports neither.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Flag(NamedTuple):
    """Metadata: the flag of an option of the library: its short form, whether there is one (`parse`), another name.

    Settings of commands have cyclopts' `Parameter`.
    """

    alias: str | None = None
    parse: bool | None = None
    name: str | None = None


class Needs(NamedTuple):
    """Metadata: the setting is read only with another, or with values of that, or with a third, `or_with`."""

    other: str
    values: Any = ()
    or_with: str | None = None


class Without(NamedTuple):
    """Metadata: the setting is not read if another one is given."""

    other: str


class Parlai(NamedTuple):
    """Metadata: the setting is also an option of ParlAI's agents. Classes that are `in_parlai` need none.

    name: the option's, if it differs; None for no option. theirs: whether ParlAI itself has it, so that no agent adds
    it.
    """

    name: str | None = ""
    theirs: bool = False
