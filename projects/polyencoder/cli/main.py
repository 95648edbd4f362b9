"""`polyencoder COMMAND ...`: what production needs, without ParlAI.

A command's module, and with it torch, is imported when the command is run: `polyencoder --help` needs neither.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from polyencoder.cli.flags import Command, flag_of
from polyencoder.errors import PolyencoderError, first_line
from polyencoder.packages import versions_line

__all__ = ["app", "main"]


class _Place(NamedTuple):
    """Where a command is: a module of this folder, and a function in it."""

    module: str
    function: str

    def imported(self) -> Callable[..., None]:
        function: Callable[..., None] = getattr(import_module(f"polyencoder.cli.{self.module}"), self.function)
        return function

    def help(self) -> str:
        """Its docstring, from the source: nothing is imported."""
        source = (Path(__file__).parent / f"{self.module}.py").read_text(encoding="utf-8")
        defined = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        return next(ast.get_docstring(node) or "" for node in defined if node.name == self.function)


_COMMANDS = {
    "check": _Place("check", "check"),
    "vocab": _Place("vocab", "vocab"),
    "prepare-reddit": _Place("prepare_reddit", "prepare_reddit"),
    "pretrain": _Place("pretrain", "pretrain_encoder"),
    "overlap": _Place("overlap", "overlap"),
    "train": _Place("train", "train"),
    "evaluate": _Place("evaluate", "evaluate"),
    "import": _Place("importing", "import_model"),
    "export": _Place("export", "export"),
    "calibrate": _Place("calibrate", "calibrate"),
    "index": _Place("index", "index"),
    "update": _Place("index", "update"),
    "search": _Place("search", "search"),
    "serve": _Place("serve", "serve"),
    "mine": _Place("mine", "mine"),
    "encode": _Place("encode", "encode"),
    "intents": _Place("intents", "intents"),
    "map": _Place("map", "map_candidates"),
    "zoo": _Place("zoo", "zoo"),
}


class _Commands(Mapping[str, TyperCommand]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, TyperCommand] = {}

    def __getitem__(self, name: str) -> TyperCommand:
        if name not in self._made:
            alone = typer.Typer(add_completion=False)
            alone.command(name, cls=Command)(_COMMANDS[name].imported())
            self._made[name] = cast("TyperCommand", typer.main.get_command(alone))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Group(TyperGroup):
    """A group whose list of commands needs none of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing adds to it

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """For lists of commands: a command of this name and help alone."""
        place = _COMMANDS.get(cmd_name)
        return None if place is None else TyperCommand(cmd_name, help=place.help())

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in self.commands:
            _prepare_torch()
            command = self.commands[name]
        return name, command, rest


def _prepare_torch() -> None:
    """Settings of a process that runs one command."""
    from transformers.utils import logging as transformers_log

    from polyencoder.modeling.cpu.products import remember_few_shapes

    remember_few_shapes()
    if not sys.stderr.isatty():
        transformers_log.disable_progress_bar()  # of loading weights, which a log file has no use for


app = typer.Typer(
    name="polyencoder",
    cls=_Group,
    help="Rankers for dialogue and search, without ParlAI: trained, evaluated, indexed, searched and served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback; what we raise on purpose is one line
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(versions_line())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of this package and those below it, and exit.",
            is_eager=True,
            callback=_version,
        ),
    ] = False,
) -> None:
    """Flags that stand before a command."""


def main() -> None:
    """Run the command line; an error of ours is one line on standard error and exit code 1."""
    if not sys.stdout.isatty():
        os.environ.setdefault("TERMINAL_WIDTH", "120")  # of help in a pipe: 80 would leave 23 columns for its text
    try:
        app()
    except PolyencoderError as error:
        flag = flag_of(error.argument, typer.main.get_group(app), "".join(sys.argv[1:2]))
        _end(f"{error} (flag {flag})" if flag else str(error))
    except OSError as error:  # of the system, for a file that no code of ours expected it of
        _end(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else first_line(error))
    except MemoryError as error:
        _end(f"there is not enough memory ({first_line(error)})")


def _end(message: str) -> NoReturn:
    # a name that somebody else gave a file says nothing to the terminal
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in message)
    sys.stderr.write(f"polyencoder: {shown}\n")
    raise SystemExit(1) from None


if __name__ == "__main__":
    main()
