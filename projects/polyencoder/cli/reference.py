"""Generates docs/settings.md: every command and setting, from their declarations.

python -m polyencoder.cli.reference docs/settings.md
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclopts import App

from polyencoder.cli.main import COMMANDS, app, shown_default
from polyencoder.settings.fields import Leaf, leaves, parts

__all__ = ["page", "rows"]

HEAD = """# Settings

Every command and its settings. This page is made of their declarations (`make docs`); `polyencoder COMMAND --help` says
the same. What is **required** has no default; a dash is a default that the description explains.

A command with `--config` takes its settings from a YAML file too: by their flat names (`learning_rate: 2e-5`), or
nested as the column YAML says (`training: {optimizer: {learning_rate: 2e-5}}`). Flags take precedence.

The column ParlAI has the option of [the plugin](parlai.md) that means the same; `parlai train_model -m polyencoder
--help` lists them all, with the defaults that they have there. In Python a setting has the name in its flag, with `_`
for `-`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([HEAD, *(line for name in COMMANDS for line in _command(app[name], f"polyencoder {name}"))])


def _command(command: App, title: str) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{' '.join((command.help or '').partition('Args:')[0].split())}\n"
    if command.default_command is not None:
        yield from _tables(command)
    for name in command:
        if not name.startswith("-"):
            yield from _command(command[name], f"{title} {name}")


def _tables(command: App) -> Iterator[str]:
    panels: dict[str, list[dict[str, str]]] = {}
    for row in rows(command):
        panels.setdefault(row.pop("panel"), []).append(row)
    for panel, found in panels.items():
        columns = [name for name in found[0] if any(row[name] for row in found)]
        if len(panels) > 1:
            yield f"**{panel}**\n"
        yield f"| {' | '.join(columns)} |"
        yield f"|{' --- |' * len(columns)}"
        yield from (f"| {' | '.join(row[name] for name in columns)} |" for row in found)
        yield ""


def rows(command: App) -> Iterator[dict[str, str]]:
    """The table rows of a command's flags and arguments, by column."""
    arguments = [one for one in command.assemble_argument_collection(parse_docstring=True) if one.parse]
    has_file = any(one.name == "--config" for one in arguments)
    known: dict[tuple[str, ...], Leaf] = {}
    for one in arguments:
        if isinstance(one.hint, type) and dataclasses.is_dataclass(one.hint) and not one.keys:
            known |= {leaf.path: leaf for leaf in leaves(one.hint).values()}
    for one in arguments:
        if one.name.startswith("*"):  # a group of settings
            continue
        leaf = known.get(one.keys)
        option = leaf.parlai.name if leaf and leaf.parlai else None
        names = [name for name in one.names if not (name in one.negatives and name.startswith(("--no-", "--empty-")))]
        if one.index is not None and names[0].startswith("--"):  # given without its flag, too
            names.insert(0, names[0].removeprefix("--"))
        groups: Any = one.parameter.group or ()
        yield {
            "panel": ", ".join(str(group.name) for group in groups),
            "Setting": _code(*names),
            "YAML": _code(".".join(one.keys)) if has_file and one.name != "--config" else "",
            "ParlAI": _code(f"--{option.replace('_', '-')}") if option else "",
            "Type": _code(*one.get_choices() or ()) or _type(one.hint),
            "Default": "**required**" if one.required else _default(one.field_info.default),
            "Meaning": _text(one.parameter.help or ""),
        }


def _default(value: Any) -> str:
    shown = shown_default(value)
    return "—" if shown is None else _code(shown)


def _type(hint: Any) -> str:
    kinds, words = list(parts(hint)), {bool: "switch", int: "whole number", float: "number"}
    found = next((word for kind, word in words.items() if kind in kinds), "text")
    several = str(hint).startswith(("tuple[", "list[", "collections.abc.Sequence["))
    return f"{found}s" if several else found


def _code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _text(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
