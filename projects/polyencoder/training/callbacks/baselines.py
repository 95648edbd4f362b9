"""Evaluates the baselines of a run: TF-IDF, and the ranker before training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from polyencoder.data.example import Example
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import InputError
from polyencoder.evaluation.names import in_one_line, main_measures
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.training.callbacks.base import Callback, Run
from polyencoder.training.callbacks.evaluation import evaluate_together
from polyencoder.training.randomness import random_state, restore_random_state

_log = logging.getLogger(__name__)


class Baselines(Callback):
    """Evaluates the baselines before the first step, once per run, also if it is resumed.

    Args:
        untrained: builds the ranker before training.
        responses: returns the training responses, for the weights of TF-IDF.
        on_untrained: called with the metrics before training, unless they are a stand-in's.
    """

    name = "baselines"
    kept = ("before", "stands_in", "tfidf")

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
        random = random_state()  # training is the same with and without the comparison
        untrained = self._untrained()
        self.before = evaluate_together(untrained, self._examples, processes=run.processes)
        self.stands_in = untrained.model.config.architecture != run.model.config.architecture
        stand_in = ", a bi-encoder of the backbone" if self.stands_in else ""
        _log.info("before training%s: %s", stand_in, in_one_line(main_measures(self.before)))
        try:
            self.tfidf = evaluate_tfidf(self._responses(), self._examples)
            _log.info("TF-IDF: %s", in_one_line(main_measures(self.tfidf)))
        except InputError as error:
            _log.info("no comparison with TF-IDF: %s", error)
        restore_random_state(random)
        if self._on_untrained is not None and not self.stands_in:
            self._on_untrained(run, self.before)
