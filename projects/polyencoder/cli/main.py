"""`polyencoder COMMAND ...`: the command line of the library, without ParlAI.

A command's module is imported when the command is named, and torch when it runs: no help needs it.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from inspect import BoundArguments
from pathlib import Path
from typing import Any, NoReturn

from cyclopts import App, Argument, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, RepeatArgumentError, UnknownCommandError, ValidationError

from polyencoder.cli import removed
from polyencoder.cli.shared.output import say
from polyencoder.errors import PolyencoderError, UsageError, get_first_line, suggest_similar
from polyencoder.guesses import PARAMETERS, REMOVED
from polyencoder.packages import build_missing_error, format_versions, is_installed

COMMANDS = {
    "rank": "rank:rank",
    "train": "train:train",
    "evaluate": "evaluate:evaluate",
    "index": "index:index",
    "search": "search:search",
    "serve": "serve:serve",
    "chat": "chat:chat",
    "calibrate": "calibrate:calibrate",
    "update": "index:update",
    "inspect": "inspect:inspect",
    "mine": "mine:mine",
    "encode": "encode:encode",
    "export": "export:export",
    "import": "importing:import_model",
    "check": "check:check",
    "vocab": "vocab:vocab",
    "pretrain": "train:pretrain_encoder",
    "prepare-reddit": "prepare_reddit:prepare_reddit",
    "mcp-proxy": "mcp_proxy:mcp_proxy",
    "zoo": "zoo:zoo",
}
"""Each command's module in this folder and the function in it; the help lists them in this order."""

FIRST = ("rank", "train", "evaluate", "index", "search", "serve", "calibrate")
"""The commands that the help lists first."""
_PANELS = (Group("More commands", sort_key=1), Group("First commands", sort_key=0))

NEED_NO_TORCH = ("prepare-reddit", "zoo")
"""The commands that run without torch and transformers, which take seconds to import."""

OTHER_NAMES = {
    "allow_hosts": "allow_host",
    "allow_origins": "allow_origin",
    "columns": "column",
    "columns.candidates": "candidates_column",
    "columns.negatives": "negatives_column",
    "dim": "embedding_size",
    "examples": "example",
    "hard_negative_ranks": "ranks",
    "hard_negatives": "negatives",
    "on_cpu": "device",
    "warmup_updates": "warmup_steps",
    "seconds": "timeout",  # of a server's limits
    **{name: f"max_{name}" for name in ("concurrent", "bytes", "documents", "characters", "tokens")},
    **dict.fromkeys(("model", "task", "evaltask"), "trust"),  # of the options that `polyencoder check` reads
}
"""The settings of commands for the library's arguments, where names differ."""


def read_help(address: str) -> str:
    """A command's docstring without its arguments, from the source; an app's is its default command's or module's."""
    module, name = address.split(":")
    source = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    for node in source.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if {name, f"{name}.default"} & {node.name, *map(ast.unparse, node.decorator_list)}:
            return (ast.get_docstring(node) or "").partition("\n\nArgs:")[0]
    words = (ast.get_docstring(source) or "").partition(": ")[2]
    return words[:1].upper() + words[1:]


def format_default(value: Any) -> str | None:
    """A default value as the help shows it; None for one that is off or empty, which the help text explains."""
    if value is None or value is False or value in ("", ()):
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_files(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raises UsageError for unknown flags that an argument without a flag, such as a list of files, has taken."""
    words = [token.value for argument in arguments for token in argument.tokens if token.keyword is None]
    if unknown := [word for word in words if word.startswith("-") and word != "-"]:
        raise _explain_flags(unknown, commands[0])


def require_no_flag(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """With `--config` no flag is required: the settings, which read the file, say what it lacks."""
    if any(argument.name == "--config" and argument.tokens for argument in arguments):
        for argument in arguments:
            argument.parameter = Parameter.combine(argument.parameter, Parameter(required=False))


app = App(
    name="polyencoder",
    help="Rankers for dialogue and search, without ParlAI: trained, evaluated, indexed, searched and served.",
    help_format="plaintext",
    version_flags=(),
    default_parameter=Parameter(
        negative_iterable=(), show_default=format_default, allow_leading_hyphen=True, allow_repeating=True
    ),
    config=(check_files, require_no_flag),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
for _order, (_name, _address) in enumerate(COMMANDS.items()):
    _options: dict[str, Any] = {"help": read_help(_address), "sort_key": _order, "group": _PANELS[_name in FIRST]}
    app.command(f"polyencoder.cli.{_address}", name=_name, **_options)


@app.command(name="--version")
def version() -> None:
    """Print the versions of this package and those below it, and exit."""
    say(format_versions())


def parse(arguments: Sequence[str]) -> tuple[Any, BoundArguments]:
    """A command's function and arguments. UsageError for unknown or missing flags, ConfigError for wrong values."""
    name = arguments[0] if arguments else "--help"
    if name not in (*COMMANDS, *app.help_flags, "--version"):  # cyclopts would import all commands to name one
        raise _explain_command(name, [*COMMANDS])
    try:
        command, bound, unread, _ = app.parse_known_args(_join_hyphens(arguments))
    except CycloptsError as error:
        raise _translate(error, arguments) from None
    if unknown := [word for word in unread if _is_flag(word)]:
        raise _explain_flags(unknown, name)
    if unread:
        words = ", ".join(map(repr, unread))
        raise UsageError(f"unexpected {words}: a value follows its flag, and one with spaces is in quotes")
    return command, bound


def run(arguments: Sequence[str]) -> None:
    """Run a command line. Raises what `parse` and the command raise."""
    command, bound = parse(arguments)
    if command.__name__ != App.help_print.__name__ and arguments[0] not in (*NEED_NO_TORCH, "--version"):
        _prepare_torch()
    command(*bound.args, **bound.kwargs)


def main() -> None:
    """Runs the command line; errors are one line on standard error, with exit code 1, or 2 for wrong usage."""
    if not sys.stdout.isatty():
        os.environ["COLUMNS"] = "120"  # of help in a pipe: 80 would leave few columns for its text
    try:
        run(sys.argv[1:])
        sys.stdout.flush()
    except UsageError as error:
        _end(str(error), code=2)
    except PolyencoderError as error:
        flag = get_flag(error.argument, "".join(sys.argv[1:2]))
        _end(f"{error} (flag {flag})" if flag and flag not in str(error) else str(error))
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except ModuleNotFoundError as error:  # of what polyencoder-runtime lacks
        if error.name is None or error.name.partition(".")[0] == "polyencoder":
            raise
        _end(str(build_missing_error(error.name)))
    except OSError as error:  # a system error that no code expected
        _end(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else get_first_line(error))
    except MemoryError as error:
        _end(f"there is not enough memory ({get_first_line(error)})")
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _join_hyphens(arguments: Sequence[str]) -> list[str]:
    """Arguments without values that look like options: `-c -` becomes `-c=-`, a file `-x` behind `--` `./-x`."""
    options, end, files = _split_at_end(arguments)
    joined: list[str] = []
    for word in options:
        if word == "-" and joined and joined[-1] in ("-c", "--candidates"):
            joined[-1] += "=-"
        else:
            joined.append(word)
    return [*joined, *end, *(f"./{word}" if word.startswith("-") and word != "-" else word for word in files)]


def _split_at_end(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """The options, the `--` that ends them, if there is one, and the files behind it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end : end + 1], arguments[end + 1 :]


def _list_below(command: App) -> list[str]:
    return [name for name in command if not name.startswith("-")]


@cache
def _list_arguments(command: str) -> list[Argument]:
    top = app[command]
    apps = [
        command for command in (top, *(top[name] for name in _list_below(top))) if command.default_command is not None
    ]
    return [argument for command in apps for argument in command.assemble_argument_collection() if argument.parse]


def get_flags(command: str) -> Mapping[str, str]:
    """The flags of a command, and of those below it, by the names of its settings."""
    flags = [argument.name for argument in _list_arguments(command)]
    return {flag.removeprefix("--").replace("-", "_"): flag for flag in flags if flag.startswith("--")}


def get_flag(argument: str | None, command: str) -> str | None:
    """`num_negatives` -> `--num-negatives`, if the command of this name has such a flag; else None."""
    if argument is None or command not in COMMANDS:
        return None
    flags = get_flags(command)
    names = (argument, OTHER_NAMES.get(argument, argument), argument.rpartition(".")[2])
    return next((flags[key] for key in names if key in flags), None)


def _translate(error: CycloptsError, arguments: Sequence[str]) -> PolyencoderError:
    """Converts an error of cyclopts to one of ours, in one line."""
    import pydantic

    from polyencoder.validation import convert_error

    chain, unread = error.command_chain or (), error.unused_tokens or []
    if isinstance(error, UnknownCommandError) and error.app:
        return _explain_command(unread[0], _list_below(error.app), suffix=f" of {' '.join(chain)}")
    if chain:
        names = {name for argument in _list_arguments(arguments[0]) for name in argument.names}
        flags = [word for word in unread if _is_flag(word)]
        unknown = [flag for flag in flags if flag.partition("=")[0] not in names]
        if len(unknown) < len(flags):  # it failed at a flag and read nothing: short words may be values
            unknown = [flag for flag in unknown if flag.startswith("--")]
        if unknown:
            return _explain_flags(unknown, arguments[0])
    if isinstance(error, ValidationError) and error.argument and isinstance(error.__cause__, pydantic.ValidationError):
        return convert_error(error.__cause__, of=error.argument.hint)
    if isinstance(error, RepeatArgumentError):
        name = error.token.keyword
        files = "" if name in ("--index", "-i", "--compare", "--teacher") else ", with commas between files"
        return UsageError(f"{name} is given twice: give it once{files}")
    if not isinstance(error, MissingArgumentError):
        error.verbose = False
        return UsageError(" ".join(str(error).split()))
    options, _, _ = _split_at_end(arguments)
    typed = {word.partition("=")[0] for word in options}
    required = error.argument
    if required and typed & {*required.names}:
        missing = [f"a value for {required.name}"]
    else:
        command = reduce(lambda parent, name: parent[name], chain, app)
        needed = [
            argument
            for argument in command.assemble_argument_collection()
            if argument.required and not typed & {*argument.names}
        ]
        if required and required.index is not None:  # values without flags come in order: the earlier ones are there
            needed = [argument for argument in needed if argument.index is None or argument.index >= required.index]
        if isinstance(cause := error.__cause__, pydantic.ValidationError):  # it has read --config, too
            paths = [problem["loc"] for problem in cause.errors()]
            needed = [argument for argument in needed if any(argument.keys[: len(path)] == path for path in paths)]
        missing = [
            argument.name for argument in needed if argument.name.startswith("--") and not argument.name.isupper()
        ]
        if required and required.name.isupper():  # files
            missing.insert(0, required.name.removeprefix("--"))
    return UsageError(f"{' '.join(chain)} requires {', '.join(missing)}")


def _is_flag(word: str) -> bool:
    """Whether a word is a flag, known or not: `-` and `-5` are values."""
    return word.startswith("-") and word.lstrip("-")[:1].isalpha()


def _explain_command(name: str, commands: Sequence[str], *, suffix: str = "") -> UsageError:
    if not suffix and name in removed.COMMANDS:
        return UsageError(f"the command {name} was removed: {removed.COMMANDS[name]}")
    if not suffix and name in removed.GUESSED_COMMANDS:
        return UsageError(f"no command {name!r}; {removed.GUESSED_COMMANDS[name]}")
    return UsageError(f"no command {name!r}{suffix}{suggest_similar(name, commands)}")


def _explain_flags(flags: Sequence[str], command: str) -> UsageError:
    known_flags = [flag.removeprefix("--") for flag in get_flags(command).values()]
    names = {name: name.removeprefix("--") for name in (flag.partition("=")[0] for flag in flags)}
    for flag, name in names.items():
        setting = name.replace("-", "_")
        if replacement := removed.FLAGS.get((command, setting)) or REMOVED.get(setting):
            return UsageError(f"{flag} was removed: {replacement}")
    form: dict[str, Any] = {"listed": False, "shown": "--{}".format, "form": " ({})"}
    named = [  # a known flag is another subcommand's
        flag
        if name in known_flags
        else flag + (_guess_flag(name, known_flags) or suggest_similar(name, known_flags, **form))
        for flag, name in names.items()
    ]
    return UsageError(f"unknown option{'s' if len(named) > 1 else ''}: {', '.join(named)}")


def _guess_flag(name: str, flags: Sequence[str]) -> str:
    """A hint at the command's flag for what other libraries call by this name."""
    aliases = removed.GUESSED_FLAGS.get(name.replace("_", "-")) or PARAMETERS.get(name.replace("-", "_"), ())
    names = () if isinstance(aliases, str) else (alias.replace("_", "-") for alias in aliases)
    return next((f" (did you mean --{flag}?)" for flag in names if flag.split()[0] in flags), "")


def _prepare_torch() -> None:
    """Sets up torch, where it is installed, for a process that runs one command."""
    if not is_installed("torch"):
        return
    # Otherwise torch's threads spin while they wait for each other, also for a thread whose core another process uses
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from polyencoder.modeling.cpu.products import limit_shape_cache

    limit_shape_cache()
    if not sys.stderr.isatty():
        disable_progress_bars()  # transformers' for loading weights, too, which would fill a log file


def _end(message: str, *, code: int = 1) -> NoReturn:
    # others' file names must not control the terminal
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in message)
    sys.stderr.write(f"polyencoder: {printable}\n")
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()
