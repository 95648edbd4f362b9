"""`Selector`: which of several options (tools, skills, memories) a conversation needs, or none of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyencoder.calibration import AnswerOptions, CalibratedRanker, Calibration
from polyencoder.calibration.probability import sort_best_first
from polyencoder.checks import check_count, check_iterable, check_text
from polyencoder.encoding.protocol import Dialogue
from polyencoder.errors import ConfigError
from polyencoder.ranked import Ranked, add_probabilities
from polyencoder.text.dialogue import check_contexts
from polyencoder.text.options import Option, read_options


@dataclass(frozen=True)
class Selected:
    """An option that was chosen."""

    option: Any
    """The text or tool, as it was passed."""
    index: int
    """Its position in the list of options."""
    name: str | None
    """A tool's name; None for a text."""
    score: float
    """The model's score, without a unit."""
    probability: float | None
    """The probability that it is the right one; None if the model is not calibrated."""
    risk: float | None = None
    """The promised maximum share of wrong ones among such options; None but for the best option with a promise."""


@dataclass(frozen=True)
class Selection:
    """The chosen options, and how likely it is that none is right."""

    chosen: list[Selected]
    """Best first, after those that were kept; empty if none was kept and no option is probable enough."""
    none_probability: float | None
    """The probability that none of all options is right; None if the model is not calibrated."""
    best_left_out: Selected | None = None
    """The best option, if no option is probable enough and it was not kept."""


class Selector:
    """Chooses among a few hundred options with a ranker of any architecture.

    The conversation is read once. The vectors of options are kept by their content in `ranker.encoder.reader`, within
    its bound of bytes: options that were read lately are not read again. A cross-encoder reads every pair each time.

    Examples:
        >>> tools = [{"name": "get_weather", "description": "Weather of a city."}, ...]
        >>> selection = Selector(ranker).select("Do I need an umbrella?", tools, min_probability=0.5)
        >>> [option.name for option in selection.chosen], selection.none_probability
        (['get_weather'], 0.08)
    """

    def __init__(self, ranker: CalibratedRanker) -> None:
        if isinstance(ranker, (str, os.PathLike)):
            raise ConfigError(f"Selector({str(ranker)!r:.60}): pass a ranker, as in Selector(Ranker.load(name))")
        self.ranker = ranker

    def select(
        self,
        conversation: Dialogue,
        options: Sequence[Any],
        *,
        top_k: int | None = None,
        min_probability: float | None = None,
        max_risk: float | None = None,
        keep: Sequence[str] = (),
    ) -> Selection:
        """Chooses the options that a conversation needs, best first.

        Args:
            conversation: a text, a list of turns, or the messages of a chat.
            options: texts, or tools in OpenAI's or MCP's format, as `polyencoder.text.options.read_options` takes.
            top_k: the most options to choose; None for all.
            min_probability: leave out less probable options, perhaps all.
            max_risk: leave them out by a promised risk, see `polyencoder.calibration.AnswerOptions`.
            keep: names of tools, or texts, that were chosen earlier in the conversation. They come first, in this
                order, whatever their scores, so that the beginning of a prompt stays the same. Those that are no
                options any more are ignored.

        Raises:
            InputError: the conversation is empty, or an option is invalid, which the message names.
            ConfigError: the model has no calibration, or none for this risk: see `polyencoder calibrate`.
        """
        read = read_options(options)
        (turns,) = check_contexts([conversation], name="conversation")
        top_k = None if top_k is None else check_count("top_k", top_k)
        keep = [check_text("keep", key) for key in check_iterable("keep", keep, of="names or texts")]
        calibration = self.ranker.calibration
        answers = AnswerOptions(min_probability=min_probability, max_risk=max_risk)
        threshold = answers.threshold(calibration, of=self.ranker)
        scores = self.ranker.score([turns], [option.text for option in read])[0]
        return build_selection(read, scores, calibration, top_k=top_k, threshold=threshold, keep=keep)


def build_selection(
    options: Sequence[Option],
    scores: np.ndarray[Any, Any],
    calibration: Calibration | None,
    *,
    top_k: int | None,
    threshold: float | None,
    keep: Sequence[str] = (),
) -> Selection:
    """Chooses from scored options, at least one, whose equal texts count as one; see `Selector.select`.

    `scores` are [options]; `threshold`: see `AnswerOptions.threshold`.

    Raises:
        InputError: a score is nan.
    """
    texts = [option.text for option in options]
    ranked = [Ranked(i, texts[i], float(scores[i])) for i in sort_best_first(scores)]
    none, among = None, len(set(texts))
    if calibration is not None:
        ranked = add_probabilities(ranked, calibration, threshold=None, among=among)
        none = calibration.of_none([entry.text for entry in ranked], [entry.score for entry in ranked], among=among)
    items = [
        Selected(options[i].value, i, options[i].name, score, probability, risk)
        for i, _, score, probability, _, risk in ranked
    ]
    by_key = {options[item.index].name or options[item.index].text: item for item in reversed(items)}
    always = [by_key[key] for key in dict.fromkeys(keep) if key in by_key]
    probable = [
        item for item in items if threshold is None or (item.probability is not None and item.probability >= threshold)
    ]
    others = [item for item in probable if item not in always]
    chosen = always + (others if top_k is None else others[: max(0, top_k - len(always))])
    return Selection(chosen, none, None if probable or items[0] in always else items[0])
