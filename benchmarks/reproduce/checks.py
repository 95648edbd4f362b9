"""Checks a run before it starts: the flags of its commands, and missing files and models."""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import ArgumentParser
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from benchmarks.reproduce.runs import TORCHRUN, Bindings, ReproductionRun
from polyencoder.cli.main import parse
from polyencoder.errors import PolyencoderError
from polyencoder.hub.resolve import exists, explain_invalid_hub_id, was_downloaded

MODULES = {"parlai.agents.ranker.launch": "parlai", "polyencoder.cli.main": "polyencoder"}
"""Modules that torchrun starts, and the command of each."""


def find_wrong(run: ReproductionRun, bindings: Bindings) -> list[str]:
    """Errors in the flags of its commands: one line for each step that would fail.

    Runs that differ only in their folders are checked once.
    """
    lines = []
    for step in run.steps:
        try:
            problem = _find_refusal(tuple(bindings.build_command(step, run="any", seed=0)))
        except PolyencoderError as error:
            problem = str(error)
        if problem:
            lines.append(f"{run.name}, {step.name}: {problem}")
    return lines


def find_missing(run: ReproductionRun, bindings: Bindings) -> list[str]:
    """Missing files and models, with the paths that were searched; nothing is downloaded."""
    if run.missing:
        return [run.missing]
    lines = []
    data = Path(bindings.named["data"])
    for entry in run.files:
        choices = [choice.strip() for choice in entry.split("|")]
        if not any(any(data.glob(name)) for choice in choices for name in (choice, f"{choice}.gz")):
            lines.append(f"{data / choices[0]}" + (f" (or {', '.join(choices[1:])})" if choices[1:] else ""))
    for name in run.models:
        try:
            value = bindings.get_placeholder(name)
        except PolyencoderError as error:
            lines.append(str(error))
            continue
        of_zoo = value.startswith("zoo:")
        if not (of_zoo or exists(value)) and (reason := explain_invalid_hub_id(value)):
            lines.append(f"{{{name}}}: {value}: {reason}")
        elif of_zoo or not (exists(value) or was_downloaded(value)):
            lines.append(f"{{{name}}}: {value}, to be downloaded")
    return lines


@cache
def _find_refusal(command: tuple[str, ...]) -> str:
    """The error of the command's own parser, empty if it accepts the words; nothing is loaded or downloaded."""
    if command[0] == "torchrun":
        module, *rest = command[len(TORCHRUN) :]
        if module not in MODULES:
            return f"torchrun -m {module} is not a command of this project"
        command = (MODULES[module], *rest)
    program, name, *words = command
    if program == "polyencoder":
        try:
            parse([name, *words])
        except PolyencoderError as error:
            return str(error)
        return ""
    if program == "parlai":
        return _find_parlai_refusal(name, list(words))
    if program == "python" and name == "-m":
        return "" if find_spec(words[0]) else f"module {words[0]} does not exist"
    return f"{program} is not a command of this project"


def _find_parlai_refusal(name: str, words: list[str]) -> str:
    from parlai.core.script import SCRIPT_REGISTRY, setup_script_registry

    setup_script_registry()
    if name not in SCRIPT_REGISTRY:
        return f"parlai has no command {name}"
    parser = SCRIPT_REGISTRY[name].klass.setup_args()
    words = [f"not-fetched/{word}" if word.startswith("zoo:") else word for word in words]
    output = io.StringIO()
    before, sys.argv = sys.argv, ["parlai", name, *words]  # where ParlAI looks for some flags
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            parser.add_extra_args(words)
            ArgumentParser.parse_args(parser, words)  # ParlAI's own parser would download missing models
    except SystemExit:
        return output.getvalue().strip().splitlines()[-1]
    except Exception as error:  # agents and teachers raise errors of any kind
        return str(error)
    finally:
        sys.argv = before
    return ""
