"""`AnswerOptions`: which answers are good enough, for Python, the command line, HTTP and ParlAI's agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from polyencoder.calibration.probability import CalibratedRanker, Calibration
from polyencoder.errors import ConfigError
from polyencoder.settings.metadata import Parlai


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options that leave out answers of a calibrated model. ConfigError for both, or one not between 0 and 1."""

    min_probability: Annotated[float | None, Parlai()] = None
    """Leave out results that are less likely than this to be right, from 0 to 1. See polyencoder calibrate."""
    max_risk: Annotated[float | None, Parlai()] = None
    """Leave out results that are less likely than the calibration promises for this risk, such as 0.05: of the best
    results that remain at most this share is wrong. The risk is one of `polyencoder calibrate --risk`."""

    def __post_init__(self) -> None:
        if len(self.limits) == 2:
            raise ConfigError("give either min_probability or max_risk, not both", argument="max_risk")
        for name in self.limits:
            share: Any = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share!r:.60}; it must be a number from 0 to 1", argument=name)

    @property
    def limits(self) -> list[str]:
        """The names of the options that are set."""
        return [name for name in ("min_probability", "max_risk") if getattr(self, name) is not None]

    def or_promised(self, calibration: Calibration | None, *, index: str) -> AnswerOptions:
        """These options, or if none is given the first promise for searches of an index, by its address, if any."""
        if self.limits or calibration is None:
            return self
        promises = calibration.for_search.promises_for(index)
        return AnswerOptions(max_risk=promises[0].risk if promises else None)

    def threshold(
        self, calibration: Calibration | None, *, of: CalibratedRanker, index: str | None = None
    ) -> float | None:
        """The lowest probability of an answer; None for any. ConfigError without a calibration that promises the risk.

        `calibration` is that ranker's (`of`), for the scores that order the answers; `index` the address of the index
        that is searched, None for a ranking.
        """
        if not self.limits:
            return None
        if calibration is None:
            model = "MODEL" if of.source is None else of.source
            needed = "a minimum probability needs a calibrated model, and this"
            raise ConfigError(
                f"{needed} one is not calibrated, or was trained since: calibrate {model} with `polyencoder "
                "calibrate`, and the backend in use",
                argument=self.limits[0],
                public=f"{needed} server's is not calibrated: leave it out, or calibrate the model with `polyencoder "
                "calibrate` and start the server again",
            )
        if self.max_risk is None:
            return self.min_probability
        return calibration.promise(self.max_risk, index=index).threshold
