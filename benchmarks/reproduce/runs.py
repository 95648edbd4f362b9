"""A run: a sequence of the project's commands whose reports give the numbers of a table's cells."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from polyencoder.errors import ConfigError

PROCESSES = "processes"
"""The placeholder for the number of processes, one for each GPU, that share each training batch."""
TORCHRUN = ("torchrun", "--nproc-per-node", f"{{{PROCESSES}}}", "-m")
LAUNCHER = (*TORCHRUN, "parlai.agents.ranker.launch")

_PLACEHOLDER = re.compile(r"\{(?P<name>\w+)(?::(?P<of>[\w.-]+))?\}")
_STARTS = ("--backbone", "--init-model", "--model")
PACKAGE = "package:"
"""Prefix of a folder inside an installed package: `package:NAME/FOLDER`."""


Words = Annotated[tuple[str, ...], BeforeValidator(lambda text: tuple(str(text).split()))]
"""The words of a command; files have it as one text."""


@dataclass(frozen=True)
class Step:
    """A command, and where to read its numbers."""

    name: str
    """The prefix of its numbers: `valid/R20@1`."""
    command: Words
    """With placeholders such as {data}; rerun after a kill, it resumes."""
    read: Mapping[str, Any] = field(default_factory=dict)
    """The argument of `reports.read_numbers`."""
    smoke: Words = ()
    """Words appended for a smoke test of {updates} updates."""


@dataclass(frozen=True)
class ReproductionRun:
    """Commands that are run once for each seed."""

    name: str
    steps: list[Step] = field(default_factory=list)
    updates: int = 0
    """The minimum, for the run to count as a result; 0: none."""
    examples: int = 0
    """The minimum of training examples; a step with `read: {amount: true}` prints both."""
    files: list[str] = field(default_factory=list)
    """Below the data folder; see `scales.Task.files`."""
    seeds: int = 1
    hours: float | None = None
    """Expected for one seed, on the scale's machine."""
    missing: str = ""
    """Why it cannot be run anywhere at this scale; empty if it can."""

    @property
    def needs(self) -> dict[str, bool]:
        """The runs it depends on: True if on the same seed's model, False if on the first seed's files."""
        return {of: (of, "model") in self.placeholders for of in sorted({of for of, _ in self.placeholders if of})}

    @property
    def placeholders(self) -> set[tuple[str | None, str]]:
        """(None, name) for each {name} in its commands, and (run, name) for each {name:run}."""
        words = " ".join(word for step in self.steps for word in step.command)
        return {(match["of"], match["name"]) for match in _PLACEHOLDER.finditer(words)}

    @property
    def models(self) -> list[str]:
        """Placeholders of the encoders and rankers that it starts from, such as `minilm`; not other runs'."""
        words = [word for step in self.steps for word in step.command]
        matches = [_PLACEHOLDER.fullmatch(word) for flag, word in pairwise(words) if flag in _STARTS]
        return sorted({match["name"] for match in matches if match and not match["of"]})

    @property
    def commands(self) -> list[str]:
        """Its commands, one line each, with their placeholders."""
        return [" ".join(step.command) for step in self.steps]

    @property
    def trains(self) -> bool:
        """Whether it trains a model, so that results depend on the seed."""
        return bool(self.updates or self.examples)

    def make_smoke_test(self) -> ReproductionRun:
        """A smoke test of the run: a few updates and examples; not a result."""
        steps = [replace(step, command=(*step.command, *step.smoke), smoke=()) for step in self.steps]
        return replace(self, steps=steps, updates=0, examples=0)


@dataclass(frozen=True)
class Bindings:
    """The values of the {placeholders} in commands."""

    named: Mapping[str, str]
    """The scale's, overridden by `--set`, and `data`."""
    runs: Path
    """The folder of models and checkpoints, with a subfolder for each run and seed."""

    def get_folder(self, run: str, seed: int) -> Path:
        """The folder of one seed of a run."""
        return self.runs / run / f"seed-{seed}"

    def fill(self, word: str, *, run: str, seed: int) -> str:
        """A command's word with all placeholders filled in.

        Raises:
            ConfigError: a placeholder is unknown, or a package is not installed.
        """

        def get_value(match: re.Match[str]) -> str:
            name, of = match["name"], match["of"]
            if name == "model" and of:
                return str(self.get_folder(of, seed) / "model")
            if name == "folder":  # of another run: data that does not depend on the seed
                return str(self.get_folder(of, 0) if of else self.get_folder(run, seed))
            if name == "seed":
                return str(seed)
            if name not in self.named:
                raise ConfigError(f"{word}: unknown placeholder {{{name}}}; set it with --set {name}=...")
            return self.get_placeholder(name)

        return _PLACEHOLDER.sub(get_value, word)

    def get_placeholder(self, name: str) -> str:
        """The value of a placeholder; a folder for `package:NAME/FOLDER`."""
        value = self.named[name]
        if not value.startswith(PACKAGE):
            return value
        package, _, folder = value.removeprefix(PACKAGE).partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"{{{name}}} is in the package {package}, which is not installed; give --set {name}=FOLDER"
            )
        return str(Path(spec.submodule_search_locations[0]) / folder)

    def build_command(self, step: Step, *, run: str, seed: int) -> list[str]:
        """A step's words, with all placeholders filled in."""
        return [self.fill(word, run=run, seed=seed) for word in step.command]
