"""Evaluates the baselines of a run, TF-IDF and the ranker before training; warns if training gained nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from polyencoder.data.example import Example
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import InputError
from polyencoder.evaluation.names import format_line, format_name, select_main_measures
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.evaluation import evaluate_together
from polyencoder.training.randomness import get_random_state, restore_random_state

_log = logging.getLogger(__name__)


class Baselines(Callback):
    """Evaluates the baselines before the first step, once per run, also if it is resumed.

    Args:
        untrained: builds the ranker before training.
        responses: returns the training responses, for the weights of TF-IDF.
        on_untrained: called with the metrics before training, unless they are a stand-in's.
    """

    name = "baselines"
    stored = ("before", "stands_in", "tfidf")

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        untrained: Callable[[], TextRanker],
        responses: Callable[[], Iterable[str]],
        on_untrained: Callable[[Run, Mapping[str, float]], None] | None = None,
    ) -> None:
        self._examples, self._untrained = examples, untrained
        self._responses, self._on_untrained = responses, on_untrained
        self.before: dict[str, float] = {}
        """The metrics of the ranker before training."""
        self.stands_in = False
        """Whether `before` is another model's, because the model to be trained is partly random."""
        self.tfidf: dict[str, float] = {}
        """The metrics of TF-IDF; empty if the responses have no words."""

    def on_start(self, run: Run) -> None:
        if self.before:
            return
        random = get_random_state()  # training is the same with and without the comparison
        untrained = self._untrained()
        self.before = evaluate_together(untrained, self._examples, processes=run.processes)
        self.stands_in = untrained.model.config.architecture != run.model.config.architecture
        stand_in = ", a bi-encoder of the backbone" if self.stands_in else ""
        _log.info("before training%s: %s", stand_in, format_line(select_main_measures(self.before)))
        try:
            self.tfidf = evaluate_tfidf(self._responses(), self._examples)
            _log.info("TF-IDF: %s", format_line(select_main_measures(self.tfidf)))
        except InputError as error:
            _log.info("no comparison with TF-IDF: %s", error)
        restore_random_state(random)
        if self._on_untrained is not None and not self.stands_in:
            self._on_untrained(run, self.before)


MIN_UPDATES = 100
HIGHER_LOSS = 1.02  # relative to before training
MIN_DISTINCT = 0.1  # share of distinct responses


def explain_no_better(
    run: Run,
    *,
    before: Mapping[str, float],
    best: Mapping[str, float],
    metric: str = "hits@1",
    stands_in: bool,
    responses: Iterable[str],
) -> str | None:
    """A warning if the best evaluation of a run is no better than before training; None if it is.

    before, best: metrics on the same examples; `metric` must have improved. stands_in: whether `before` is that of
    a bi-encoder of the backbone, since the model started partly random. responses: of the training data.
    """
    if best[metric] > before[metric]:
        return None
    loss = None if stands_in else before["loss"]  # another model's loss does not compare
    reasons = _list_reasons(run, before=loss, after=best["loss"], responses=list(responses))
    than = "a bi-encoder of the backbone" if stands_in else "before"
    difference = f"{format_name(metric, best)} {best[metric] - before[metric]:+.3f}"
    return f"the trained model is no better than {than}: {difference}. {'; '.join(reasons)}"


def _list_reasons(run: Run, *, before: float | None, after: float, responses: list[str]) -> list[str]:
    updates, config, reasons = run.updates.count, run.config, []
    if updates < MIN_UPDATES:
        reasons.append(f"{updates} updates are few: give more epochs, or more data")
    if before is not None and after > HIGHER_LOSS * before:
        reasons.append(
            f"the validation loss rose from {before:.3g} to {after:.3g}: try a lower learning_rate than "
            f"{config.optimizer.learning_rate:g}"
        )
    if run.skipped:
        share = run.skipped / max(1, run.progress.batches)
        reasons.append(f"{share:.0%} of the batches had a single candidate: give a larger batch_size, or other data")
    if responses and (distinct := len(set(responses))) < MIN_DISTINCT * len(responses):
        reasons.append(f"only {distinct:,} of the {len(responses):,} training responses are distinct")
    return reasons or ["data that is more like the validation data, another learning_rate or more epochs may help"]
