"""`TuneSettings`: the settings of `polyencoder tune` and `tune`, and the values that it tries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, product
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import BeforeValidator

from polyencoder.errors import ConfigError, did_you_mean
from polyencoder.settings.base import flat_values, settings
from polyencoder.settings.fields import Count, leaves
from polyencoder.settings.train import TrainSettings

_NUMBER = r"[-+]?[\d.]+(?:e[-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::(log|{_NUMBER}))?", re.IGNORECASE)
_FORM = "give NAME=LOW:HIGH, NAME=LOW:HIGH:log, NAME=LOW:HIGH:STEP or NAME=A,B,C"
_PANELS = ("Data", "Evaluation and checkpoints", "Settings")  # what trials are compared by, and where they are
_CHECKED = 1000  # combinations of values


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: with `log` drawn by their logarithm, with `step` at this distance."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest number: with a step, the last one that does not exceed `high`."""
        if self.step is None:
            return self.low, self.high
        low, high, step = (Decimal(str(one)) for one in (self.low, self.high, self.step))  # as Optuna counts
        return self.low, type(self.low)(low + (high - low) // step * step)


def parse_search(text: str) -> tuple[str, Range | tuple[str, ...]]:
    """Parses the values of one setting: `learning_rate=1e-5:1e-3:log`, `n_codes=16:64:16`, `architecture=bi,poly`.

    Returns: the setting's flat name, and a range of numbers or the values to choose from.

    Raises:
        ConfigError: there is no such setting of a model or its training, or the values are none.
    """
    name, separator, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    known = {name: leaf for name, leaf in leaves(TrainSettings).items() if leaf.has_flag}
    searched = [one for one, leaf in known.items() if leaf.panel not in _PANELS and one != "seed"]
    if not separator or not values:
        raise ConfigError(f"search {text!r}: {_FORM}", argument="search")
    if name not in searched:
        if name in known:
            raise ConfigError(
                f"search {text!r}: trials must have the same {name}, or their measures do not compare",
                argument="search",
            )
        raise ConfigError(f"search {text!r}: no setting {name!r}{did_you_mean(name, searched)}", argument="search")
    kinds = known[name].kinds
    match = _RANGE.fullmatch(values) if {int, float} & {kind for kind in kinds if isinstance(kind, type)} else None
    if match is None:
        choices = tuple(one.strip() for one in values.split(","))
        if len({*choices}) < len(choices) or "" in choices:
            raise ConfigError(f"search {text!r}: a value is empty or occurs twice: {_FORM}", argument="search")
        return name, choices
    try:
        number = float if float in kinds else int
        low, high, third = number(match[1]), number(match[2]), match[3]
        log = third is not None and third.lower() == "log"
        step = None if log or third is None else number(third)
    except ValueError:
        kind = "numbers" if float in kinds else "whole numbers"
        raise ConfigError(f"search {text!r}: {name} takes {kind}", argument="search") from None
    if not low < high:
        raise ConfigError(f"search {text!r}: the low end must be below the high end", argument="search")
    if log and low <= 0:
        raise ConfigError(f"search {text!r}: with log the low end must be above 0", argument="search")
    if step is not None and step <= 0:
        raise ConfigError(f"search {text!r}: the step must be above 0", argument="search")
    return name, Range(low, high, log, step)


def _list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@settings()
class TuneSettings(TrainSettings):
    """The settings of a study: those of all its trials, and those that it searches. `out` is the study's folder."""

    search: Annotated[
        tuple[str, ...],
        BeforeValidator(_list),
        Parameter(consume_multiple=1, negative="", allow_leading_hyphen=False),
    ] = ()
    """The values to try of one setting of the model or its training, several times: NAME=LOW:HIGH for numbers from LOW
    to HIGH, NAME=LOW:HIGH:log to draw them by their logarithm, NAME=LOW:HIGH:STEP at a distance, NAME=A,B,C for
    choices. NAME is a flag's, such as learning_rate."""
    trials: Count = 20
    """How many trials the study has, finished ones included; fewer where there are no more combinations."""
    keep_all: bool = False
    """Keep the models and checkpoints of all trials, instead of the best one's."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of a run; a searched setting has its first value where a run is checked as a whole."""
        texts = _list(given.get("search") or ())
        searched = [one for one in texts if isinstance(one, str)] if isinstance(texts, Sequence) else []
        first = {name: _ends(values)[0] for name, values in map(parse_search, searched)}
        return {**super().presets({**given, **first}), **first}

    @property
    def space(self) -> dict[str, Range | tuple[str, ...]]:
        """The values of `search` by the settings' names."""
        return dict(map(parse_search, self.search))

    def trial(self, values: Mapping[str, Any], *, out: str) -> TrainSettings:
        """The settings of a run with these values in the place of the searched ones, in its own folder.

        Raises:
            ConfigError: they contradict each other.
        """
        return TrainSettings.of(self.common | {**values, "out": out})

    @property
    def common(self) -> dict[str, Any]:
        """The settings that were given for all trials, by flat name."""
        known = leaves(TrainSettings)
        own = flat_values(self)
        return {name: own[name] for name in known if name in self.given and name in own and name != "config"}

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name, _ in map(parse_search, self.search)]
        if not names:
            raise ConfigError(f"a study searches the values of at least one setting: {_FORM}", argument="search")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"search has {twice[0]} twice: give all its values at once", argument="search")

    def check(self) -> None:
        """Raises ConfigError if a setting is given and searched, or ends of ranges or choices cannot be combined."""
        for name in self.space:
            if name in self.common:
                raise ConfigError(f"{name} is given and searched: leave one out", argument=name)
        for values in islice(self._corners(), _CHECKED):
            try:
                self.trial(values, out=self.data.out)
            except ConfigError as error:
                shown = ", ".join(f"{name} {value}" for name, value in values.items())
                raise ConfigError(f"search: a trial with {shown} is not possible: {error}", argument="search") from None

    def _corners(self) -> Iterator[dict[str, Any]]:
        """Combinations of choices and of ends of ranges."""
        space = self.space
        for values in product(*map(_ends, space.values())):
            yield dict(zip(space, values, strict=True))


def _ends(values: Range | tuple[str, ...]) -> tuple[Any, ...]:
    return values.ends if isinstance(values, Range) else values
