"""Console output under ParlAI's commands: one-line errors, options on request, the library's log."""

from __future__ import annotations

import logging as standard_logging
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.settings import flag_of
from parlai.core.params import ParlaiParser
from tqdm import tqdm
from transformers.utils import logging as transformers_log

from polyencoder.errors import ConfigError, PolyencoderError, did_you_mean

AGENTS = ("biencoder", "polyencoder", "crossencoder", "lateencoder", "convert", "pretrain_ranker")

# The output of `Opt.log()`: a heading, and a line per option
OPTION = re.compile(r"Opt:|    \w+: .*")
NO_MODEL = "WARNING: Model file does not exist, check to make sure it is correct: "  # ParlAI's message

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def explain_errors(parser: ParlaiParser) -> None:
    """Makes commands report errors in one line: errors of the command line, with suggestions, and the library's.

    Agents and teachers call it when they add their flags, which ParlAI's commands do first.
    """
    _explain_parsing(parser)
    show_errors_in_one_line(parser)
    if "--distributed-world-size" in parser._option_string_actions and not torch.cuda.is_available():
        raise ConfigError(
            "ParlAI's commands for several processes need GPUs, and there is none: use torchrun --nproc-per-node N "
            "-m parlai.agents.ranker.launch train_model (or eval_model) ..."
        )


def show_errors_in_one_line(parser: ParlaiParser | None = None) -> None:
    """Sets `sys.excepthook` to show the library's errors in one line, unless `--debug` is given.

    The line names the flag, if the command's parser is known. Programs that use our agents keep their own hook.
    """
    if not _is_command():
        return
    otherwise, known = sys.excepthook.args if isinstance(sys.excepthook, partial) else (sys.excepthook, None)
    sys.excepthook = partial(_show_error, otherwise, known or parser)


def hide_options() -> None:
    """Hides ParlAI's two listings of all 200 options, except with `--loglevel debug`; `X.run.json` has them too."""
    if _is_command() and _without_options not in logging.logger.filters:
        logging.logger.addFilter(_without_options)


def show_library_log() -> None:
    """Passes the library's log to ParlAI's; progress bars of loading weights only in a terminal."""
    if _is_command() and not sys.stderr.isatty():
        transformers_log.disable_progress_bar()
    log = standard_logging.getLogger("polyencoder")
    if not any(isinstance(handler, _IntoParlai) for handler in log.handlers):
        log.addHandler(_IntoParlai())
        log.setLevel(standard_logging.INFO)
        log.propagate = False


class _IntoParlai(standard_logging.Handler):
    def emit(self, record: standard_logging.LogRecord) -> None:
        logging.logger.log(record.getMessage(), level=record.levelno)


def _is_command() -> bool:
    """Whether this process is `parlai ...` or `python -m parlai...`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return (spec.name if spec else Path(sys.argv[0]).stem).partition(".")[0] == "parlai"


def _show_error(
    otherwise: Hook,
    parser: ParlaiParser | None,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    line = None if "--debug" in sys.argv else _in_one_line(error, parser)
    if line is None:
        otherwise(kind, error, trace)
    else:
        tqdm.write(f"error: {line}", file=sys.stderr)  # on a new line after a progress bar


def _in_one_line(error: BaseException, parser: ParlaiParser | None) -> str | None:
    """The one-line message of a library error, or of ParlAI's errors for mistyped names; None for others."""
    if isinstance(error, PolyencoderError):
        flag = flag_of(error.argument, parser)
        return f"{error} (flag {flag})" if flag else str(error)
    if isinstance(error, RuntimeError) and str(error).startswith(NO_MODEL):
        return f"{str(error).removeprefix(NO_MODEL)}: there is no such model file; check -mf"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("parlai.agents."):
        name = str(error.name).split(".")[2]
        return f"-m {name}: ParlAI has no such agent{did_you_mean(name, AGENTS, listed=False)}"
    return None


def _without_options(record: standard_logging.LogRecord) -> bool:
    return logging.logger.level <= logging.DEBUG or not OPTION.fullmatch(str(record.msg))


# ---- errors in the command line


def _explain_parsing(parser: ParlaiParser) -> None:
    """Makes a parser report errors in one line, without its help.

    ParlAI's main parser, which cannot be changed, would find unknown flags. The command's parser runs earlier, and ends
    with the error.
    """
    if "error" in vars(parser):  # already done; or ParlAI parses keyword arguments, and raises errors itself
        return
    parse = parser.parse_known_args

    def parse_known_args(args=None, namespace=None, nohelp=False):  # type: ignore[no-untyped-def]
        known, unknown = parse(args, namespace, nohelp)
        if unknown and not nohelp:  # without help ParlAI only determines agent and task
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(parser, unknown)}")
        return known, unknown

    parser.error = partial(_end, parser)
    parser.parse_known_args = parse_known_args


def _end(parser: ParlaiParser, message: str) -> None:
    sys.stderr.write(f"error: {message} ({parser.prog} --help lists all flags)\n")
    raise SystemExit(2)


def _meant(parser: ParlaiParser, unknown: list[str]) -> str:
    flag = next((text for text in unknown if text.startswith("-")), None)
    # ParlAI keeps its short flags with two hyphens, and its long ones first
    flags = {name.lstrip("-"): action.option_strings[0] for name, action in parser._option_string_actions.items()}
    return did_you_mean(flag.lstrip("-"), flags, listed=False, shown=flags.__getitem__) if flag else ""
