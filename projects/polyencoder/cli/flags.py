"""Flags: of the arguments that errors of the library name, given in vain, and unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from polyencoder.errors import ConfigError

__all__ = ["Command", "check_flags", "flag_of", "given_flags"]

OTHER_NAMES = {
    "allow_hosts": "allow_host",
    "columns": "column",
    "columns.candidates": "column_candidates",
    "dim": "embedding_size",
    "hard_negative_margin": "margin",
    "hard_negative_ranks": "ranks",
    "hard_negatives": "negatives",
    "on_cpu": "device",
    "warmup_updates": "warmup_steps",
    "seconds": "timeout",  # of a server's limits
    **{name: f"max_{name}" for name in ("concurrent", "bytes", "documents", "characters", "tokens")},
    **dict.fromkeys(("model", "task", "evaltask"), "trust"),  # of the options that `polyencoder check` reads
}
"""What commands call arguments, where they do not have the library's name for them."""


def flag_of(argument: str | None, commands: TyperGroup, name: str) -> str | None:
    """`num_negatives` -> `--num-negatives`, if the command of this name has such a flag; else None."""
    if argument is None or name not in commands.commands:
        return None
    flags = _flags(commands.commands[name])
    names = (argument, OTHER_NAMES.get(argument, argument), argument.rpartition(".")[2])
    return next((flags[one] for one in names if one in flags), None)


def given_flags(context: typer.Context) -> set[str]:
    """The names of the parameters that the command line gives, with their defaults or others."""
    return {
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") in ("COMMANDLINE", "ENVIRONMENT")
    }


def check_flags(
    context: typer.Context,
    *,
    needs: Mapping[str, Iterable[str]] | None = None,
    excludes: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Raise ConfigError for a flag that the command would ignore.

    Args:
        context: of the command.
        needs: parameter -> those that are read only with it.
        excludes: parameter -> those that are not read with it.
    """
    given, flags = given_flags(context), _flags(context.command)
    for other, names in (needs or {}).items():
        for name in names if other not in given else ():
            if name in given:
                raise ConfigError(f"{flags[name]} is read only with {flags[other]}: give that too, or leave it out")
    for other, names in (excludes or {}).items():
        for name in names if other in given else ():
            if name in given:
                raise ConfigError(f"{flags[name]} is not read with {flags[other]}: give one of them")


class Command(TyperCommand):
    """A command that names all its unknown flags at once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {flag for option in self.get_params(ctx) for flag in (*option.opts, *option.secondary_opts)}
        unknown = [flag for flag in _long_flags(self, args) if flag not in known]
        if len(unknown) > 1:  # of one, the parser itself says it
            guesses = {flag: get_close_matches(flag, known, n=1) for flag in unknown}
            named = [flag + (f" (did you mean {close[0]}?)" if close else "") for flag, close in guesses.items()]
            ctx.fail(f"No such options: {', '.join(named)}")
        return super().parse_args(ctx, args)


def _long_flags(command: TyperCommand, args: list[str]) -> list[str]:
    """The flags among the arguments that begin with two dashes, without the values of those that are known."""
    takes_value = {
        flag for one in command.params if isinstance(one, TyperOption) and not one.is_flag for flag in one.opts
    }
    found: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            break
        if arg in takes_value:
            next(rest, None)
        elif arg.startswith("--"):
            found.append(arg.partition("=")[0])
    return found


def _flags(command: Any) -> dict[str | None, str]:
    """Of each option by name the flag, in its longest form."""
    return {option.name: max(option.opts, key=len) for option in command.params if isinstance(option, TyperOption)}
