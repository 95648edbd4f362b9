"""What a run's model makes of validation data: its metrics, its worst errors, the reliability of its probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polyencoder.calibration import CalibratedRanker
from polyencoder.calibration.fitting import Reliability, reliability_of
from polyencoder.data.example import Example
from polyencoder.evaluation import example_scores
from polyencoder.evaluation.examples import check_examples, tally_of
from polyencoder.evaluation.observe import observations_of
from polyencoder.evaluation.worst import WorstError, worst_errors


@dataclass(frozen=True)
class Validation:
    """What a model makes of validation data."""

    data: str
    """The file."""
    examples: int
    report: Mapping[str, float]
    """The metrics, as `polyencoder evaluate` has them."""
    worst: list[WorstError] = field(default_factory=list)
    """The twenty worst errors."""
    reliability: Reliability | None = None
    """Of a calibrated model's probabilities."""


def validate(ranker: CalibratedRanker, examples: Sequence[Example], *, data: str) -> Validation:
    """Ranks each example's own candidates, once for all that the report shows; `data` names their file.

    Raises:
        InputError: there is no example, or one whose label is not among its candidates.
    """
    check_examples(examples)
    scores = dict(example_scores(ranker, examples))
    report = tally_of(examples, scores.items()).report()
    reliability = None
    if ranker.calibration is not None:
        reliability = reliability_of(ranker.calibration, observations_of(examples, scores.items()))
    return Validation(data, len(examples), report, worst_errors(examples, scores), reliability)
