"""A run: commands of the project, one after the other, whose reports give the numbers of a table's cells."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from polyencoder.errors import ConfigError

__all__ = ["LAUNCHER", "PROCESSES", "TORCHRUN", "Asked", "Places", "Run", "Step"]

PROCESSES = "processes"
"""The place whose value is the number of processes, one for each GPU, that share the batches of a training."""
TORCHRUN = ("torchrun", "--nproc-per-node", f"{{{PROCESSES}}}", "-m")
LAUNCHER = (*TORCHRUN, "parlai.agents.ranker.launch")

_PLACE = re.compile(r"\{(?P<name>\w+)(?::(?P<of>[\w.-]+))?\}")
_STARTS = ("--backbone", "--init-model", "--model")
PACKAGE = "package:"
"""What a place begins with that is a folder of an installed package: `package:NAME/FOLDER`."""


@dataclass(frozen=True)
class Step:
    """A command, and where its numbers are found."""

    name: str
    """The numbers are called after it: `valid/R20@1`."""
    command: tuple[str, ...]
    """Its words, with places such as {data}; started again after a kill, it goes on."""
    read: Mapping[str, Any]
    """What `reports.numbers` is told."""
    smoke: tuple[str, ...] = ()
    """Words behind the command that make a try of a few {updates} of it."""


@dataclass(frozen=True)
class Asked:
    """What a run must have learnt from to be a result; 0 where nothing is learnt, or nothing is asked."""

    updates: int = 0
    examples: int = 0


@dataclass(frozen=True)
class Run:
    """What is run once for each seed."""

    name: str
    steps: tuple[Step, ...]
    asked: Asked
    files: tuple[str, ...]
    """Below the data folder; see `scales.Task.files`."""
    seeds: int
    hours: float | None
    """Expected of one seed, on the scale's machine."""
    missing: str
    """Why it cannot be run anywhere at this scale; empty if it can."""

    @property
    def needs(self) -> dict[str, bool]:
        """Runs whose folders its commands name: True for the same seed's model, False for what the first seed made."""
        words = [word for step in self.steps for word in step.command]
        named = {(found["of"], found["name"]) for word in words for found in _PLACE.finditer(word) if found["of"]}
        return {of: (of, "model") in named for of, _ in sorted(named)}

    @property
    def models(self) -> list[str]:
        """The places of encoders and rankers that it begins with, such as `minilm`; not those that other runs make."""
        words = [word for step in self.steps for word in step.command]
        named = [_PLACE.fullmatch(word) for flag, word in pairwise(words) if flag in _STARTS]
        return sorted({found["name"] for found in named if found and not found["of"]})

    @property
    def commands(self) -> list[str]:
        """Its commands in a line each, with their places."""
        return [" ".join(step.command) for step in self.steps]

    @property
    def learns(self) -> bool:
        """Whether seeds make a difference that a table counts."""
        return bool(self.asked.updates or self.asked.examples)

    def smoke(self) -> Run:
        """The same in a few updates and examples, which is no result."""
        steps = tuple(replace(step, command=(*step.command, *step.smoke), smoke=()) for step in self.steps)
        return replace(self, steps=steps, asked=Asked())


@dataclass(frozen=True)
class Places:
    """What {names} in commands stand for."""

    named: Mapping[str, str]
    """The scale's, as `--set` changed them, and `data`."""
    runs: Path
    """Where models and checkpoints are kept, one folder for each run and seed."""

    def folder(self, run: str, seed: int) -> Path:
        """Of a run's seed."""
        return self.runs / run / f"seed-{seed}"

    def filled(self, word: str, *, run: str, seed: int) -> str:
        """A word of a command with all places filled in.

        Raises:
            ConfigError: there is no place of that name, or a package is not installed.
        """

        def value(found: re.Match[str]) -> str:
            name, of = found["name"], found["of"]
            if name == "model" and of:
                return str(self.folder(of, seed) / "model")
            if name == "folder":  # of another run: data that depends on no seed
                return str(self.folder(of, 0) if of else self.folder(run, seed))
            if name == "seed":
                return str(seed)
            if name not in self.named:
                raise ConfigError(f"{word}: there is no place {{{name}}}; give one with --set {name}=...")
            return self.place(name)

        return _PLACE.sub(value, word)

    def place(self, name: str) -> str:
        """What the scale, or `--set`, says that a place is; of a package, its folder."""
        value = self.named[name]
        if not value.startswith(PACKAGE):
            return value
        package, _, folder = value.removeprefix(PACKAGE).partition("/")
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise ConfigError(
                f"{{{name}}} is in the package {package}, which is not installed; give --set {name}=FOLDER"
            )
        return str(Path(found.submodule_search_locations[0]) / folder)

    def command(self, step: Step, *, run: str, seed: int) -> list[str]:
        """A step's words, as a shell would have them."""
        return [self.filled(word, run=run, seed=seed) for word in step.command]
