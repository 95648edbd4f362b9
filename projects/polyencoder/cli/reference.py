"""Generates the pages of the reference that are made of declarations: commands, their settings, the HTTP API.

python -m polyencoder.cli.reference docs/settings.md docs/reference/cli.md docs/reference/http.md
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cyclopts import App

from polyencoder.cli.main import COMMANDS, app, shown_default
from polyencoder.settings.fields import Leaf, leaves, parts

HEAD = """# Settings

Every command and its settings. This page is made of their declarations (`make docs`); `polyencoder COMMAND --help` says
the same. What is **required** has no default; a dash is a default that the description explains.

A command with `--config` takes its settings from a YAML file too: by their flat names (`learning_rate: 2e-5`), or
nested as the column YAML says (`training: {optimizer: {learning_rate: 2e-5}}`). Flags take precedence.

The column ParlAI has the option of [the plugin](parlai.md) that means the same; `parlai train_model -m polyencoder
--help` lists them all, with the defaults that they have there. In Python a setting has the name in its flag, with `_`
for `-`.
"""


COMMANDS_HEAD = """# Commands

The commands of `polyencoder`, and what each needs at least. This page is made of their declarations (`make docs`). All
flags are in [Settings](../settings.md); `polyencoder COMMAND --help` prints those of one command, and `polyencoder
--version` the versions of this package and of those below it.
"""
COMMANDS_TAIL = """## What all commands share

- **Flags** have the form `--flag VALUE` or `--flag=VALUE`. A flag that is repeated takes several values where its type
  is a plural. An unknown flag is an error that names the nearest one.
- **Models** are a model folder, a model file of `parlai train_model`, or a name on the Hugging Face hub. An encoder's
  name (`sentence-transformers/all-MiniLM-L6-v2`) works, too: it ranks as a bi-encoder without training.
- **Indexes** are a folder, `milvus:ADDRESS` or `postgres://ADDRESS#TABLE`.
- **Files** of data are JSON lines, JSON, CSV, TSV or Parquet, plain or compressed, or text with one item a line. They
  are recognised by the ends of their names. A flag that takes `-` reads standard input, as text.
- **Output**: results go to standard output, as one JSON object a line with `--json`, where a command has it; progress
  and warnings go to standard error. Files and folders are written beside their final name and then renamed, so that a
  kill leaves the old one or the new one.

| exit code | means |
| --- | --- |
| 0 | success |
| 1 | an error, in one line on standard error: what is wrong, where, and what to do |
| 2 | wrong usage: an unknown command or flag, or one that is missing |
| 130 | interrupted by Ctrl-C |

| environment variable | is read for |
| --- | --- |
| `POLYENCODER_API_KEY` | the key of `polyencoder serve` |
| `MILVUS_TOKEN` | the token of a Milvus server |
| `PGPASSWORD` | the password of a PostgreSQL server |
| `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE` | the Hugging Face hub: cache, token, no network |
| `OMP_NUM_THREADS` | torch's threads |
"""


def commands_page() -> str:
    """The page of commands, in Markdown."""
    table = ["| command | what it does |", "| --- | --- |"]
    for words, command in _commands():
        anchor = f"../settings.md#{'-'.join(words)}"
        table.append(
            f"| [`{' '.join(_usage(words, command))}`]({anchor}) | {_help(command).partition('. ')[0].rstrip('.')} |"
        )
    return "\n".join([COMMANDS_HEAD, *table, "", COMMANDS_TAIL])


def _commands() -> Iterator[tuple[list[str], App]]:
    """Each command that can be run, and its words."""
    for name in COMMANDS:
        found = app[name]
        if found.default_command is not None:
            yield ["polyencoder", name], found
        yield from ((["polyencoder", name, part], found[part]) for part in found if not part.startswith("-"))


def _usage(words: list[str], command: App) -> Iterator[str]:
    yield from words
    for one in command.assemble_argument_collection(parse_docstring=True):
        if one.parse and one.required and not one.name.startswith("*"):
            name = one.name.removeprefix("--")
            yield name if one.index is not None else f"--{name} {name.upper()}"


def page() -> str:
    """The page of settings, in Markdown."""
    return "\n".join([HEAD, *(line for name in COMMANDS for line in _command(app[name], f"polyencoder {name}"))])


def _command(command: App, title: str) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{_help(command)}\n"
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


def _help(command: App) -> str:
    return " ".join((command.help or "").partition("Args:")[0].split())


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


def _http_page() -> str:
    from polyencoder.serving.reference import page  # of an extra

    return page()


PAGES: dict[str, Callable[[], str]] = {"settings.md": page, "cli.md": commands_page, "http.md": _http_page}
"""By the name of the file."""

if __name__ == "__main__":
    for _path in map(Path, sys.argv[1:]):
        _path.write_text(PAGES[_path.name](), encoding="utf-8")
