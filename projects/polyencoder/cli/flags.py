"""The flags of the arguments that errors of the library name."""

from __future__ import annotations

from typer.core import TyperGroup, TyperOption

__all__ = ["flag_of"]

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
    flags = {
        option.name: max(option.opts, key=len)
        for option in commands.commands[name].params
        if isinstance(option, TyperOption)
    }
    names = (argument, OTHER_NAMES.get(argument, argument), argument.rpartition(".")[2])
    return next((flags[one] for one in names if one in flags), None)
