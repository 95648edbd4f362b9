"""Shows the library's errors and wrong flags in one line, and its log, in ParlAI's commands."""

from __future__ import annotations

import logging as standard_logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.settings import get_flag
from parlai.core.params import ParlaiParser
from parlai.core.script import SCRIPT_REGISTRY
from tqdm import tqdm

from polyencoder.errors import ConfigError, PolyencoderError, suggest_similar

AGENTS = ("biencoder", "polyencoder", "crossencoder", "lateencoder", "convert")
REMOVED = {"tfidf": "polyencoder evaluate --baseline tfidf", "pretrain_ranker": "polyencoder pretrain"}
NO_MODEL = "WARNING: Model file does not exist, check to make sure it is correct: "  # ParlAI's message


def explain_errors(parser: ParlaiParser | None = None) -> None:
    """Shows errors in one line, unless `--debug` is given. ConfigError: no such command, or no GPU for it."""
    program = _get_program()
    if program.partition(".")[0] != "parlai":
        return
    sys.excepthook = partial(_show_error, parser)
    if parser is None or "error" in vars(parser):  # ParlAI parses keyword arguments, and raises errors itself
        return
    commands = [name for script, entry in SCRIPT_REGISTRY.items() for name in (script, *entry.aliases)]
    command = "".join(sys.argv[1:2])
    if program in ("parlai", "parlai.__main__") and command not in commands:  # ParlAI reads the flags of all of them
        raise ConfigError(
            f"parlai {command}: there is no such command{suggest_similar(command, commands, listed=False)}"
        )
    if "--distributed-world-size" in parser._option_string_actions and not torch.cuda.is_available():
        raise ConfigError(
            "ParlAI's commands for several processes need GPUs, and there is none: use torchrun --nproc-per-node N "
            "-m parlai.agents.ranker.launch train_model (or eval_model) ..."
        )
    parser.error = partial(_end, parser)
    parser.parse_known_args = partial(_parse_known_args, parser, parser.parse_known_args)


def _parse_known_args(parser: ParlaiParser, parse: Any, *args: Any, nohelp: bool = False, **options: Any) -> Any:
    parsed, unknown = parse(*args, nohelp=nohelp, **options)
    if unknown and not nohelp:  # without help ParlAI only determines agent and task
        # ParlAI keeps its short flags with two hyphens, and its long ones first
        flags = {name.lstrip("-"): action.option_strings[0] for name, action in parser._option_string_actions.items()}
        first = next((word.lstrip("-") for word in unknown if word.startswith("-")), None)
        hint = suggest_similar(first, flags, listed=False, shown=flags.__getitem__) if first else ""
        if not parsed.model and (path := vars(parsed).get("model_file")):
            hint = f"; {path}.opt (-mf) does not exist, and without -m no agent has such flags"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return parsed, unknown


def _get_program() -> str:
    """The name of this process' main module, or script; programs may set `sys.argv` for ParlAI's parsers."""
    main = sys.modules["__main__"]
    return main.__spec__.name if main.__spec__ else Path(getattr(main, "__file__", None) or "").stem


def _end(parser: ParlaiParser, message: str) -> None:
    sys.stderr.write(f"error: {message} ({parser.prog} --help lists all flags)\n")
    raise SystemExit(2)


def _show_error(parser: ParlaiParser | None, kind: Any, error: BaseException, trace: Any) -> None:
    line, message = None, str(error)
    if isinstance(error, PolyencoderError):
        line = f"{message} (flag {flag})" if (flag := get_flag(error.argument, parser)) else message
    elif isinstance(error, RuntimeError) and message.startswith(NO_MODEL):
        line = f"{message.removeprefix(NO_MODEL)}: there is no such model file; check -mf"
    elif isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("parlai.agents."):
        name = str(error.name).split(".")[2]
        hint = f"; use {REMOVED[name]}" if name in REMOVED else suggest_similar(name, AGENTS, listed=False)
        line = f"-m {name}: ParlAI has no such agent{hint}"
    if line is None or "--debug" in sys.argv:
        sys.__excepthook__(kind, error, trace)
    else:
        tqdm.write(f"error: {line}", file=sys.stderr)  # on a new line after a progress bar


class _ParlaiHandler(standard_logging.Handler):
    def emit(self, record: standard_logging.LogRecord) -> None:
        logging.logger.log(record.getMessage(), level=record.levelno)


def show_library_log() -> None:
    """Passes the library's log to ParlAI's."""
    log = standard_logging.getLogger("polyencoder")
    if not any(isinstance(handler, _ParlaiHandler) for handler in log.handlers):
        log.addHandler(_ParlaiHandler())
        log.setLevel(standard_logging.INFO)
        log.propagate = False
