"""ParlAI's messages: the dialogue so far as turns, the label, and what may be wrong with an example."""

from __future__ import annotations

import random
import re
from collections.abc import Container
from typing import Any

import parlai.utils.logging as logging
from parlai.core.message import Message
from parlai.core.metrics import Metrics, SumMetric
from parlai.core.opt import Opt
from parlai.core.torch_agent import History

from polyencoder.checks import half_characters
from polyencoder.errors import InputError
from polyencoder.text import lines_of, persona_lines

__all__ = ["EARLIER", "MESSAGE_TURNS", "BadExamples", "RankerHistory", "candidates_error", "example_error", "label_of"]


LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class RankerHistory(History):
    """ParlAI's history without its own copy of the token ids.

    It keeps `--history-size` messages, the most that these utterances can need, and the persona lines of those before
    them; the text encoder counts utterances.
    """

    def __init__(self, opt: Opt, **others: Any) -> None:
        super().__init__(opt, **others)
        self._personas: list[str] = []
        self._keeps_replies = opt.get("use_reply", "label") != "none"
        self._interactive = bool(opt.get("interactive_mode"))

    def parse(self, text: str) -> list[int]:
        return []  # the ids of a turn are made, and remembered, by the text encoder

    def reset(self) -> None:
        super().reset()
        self._personas = []

    def _update_strings(self, text: str) -> None:
        before = self.history_strings[:]
        super()._update_strings(text)
        for dropped in before[: len(before) + 1 - len(self.history_strings)]:
            self._personas += persona_lines(dropped.split("\n"))

    def update_history(self, obs: Message, temp_history: str | None = None) -> None:
        """Add what was said; a resumed run's first message of a conversation brings what was said before."""
        for message in obs.get(EARLIER, ()):
            super().update_history(message)
            if self._keeps_replies:
                self.add_reply(message["labels"][0])
        if self._interactive and obs.get("text"):  # what a person types is answered, whatever a terminal makes of it
            obs = Message({**obs, "text": LONE_SURROGATES.sub("\ufffd", obs["text"])})
        super().update_history(obs, temp_history)

    def turns(self) -> list[str]:
        """The messages so far, oldest first, persona lines before them; a temporary one belongs to the last of them."""
        turns = [*self._personas, *self.history_strings]
        if turns and self.temp_history is not None:
            turns[-1] += self.temp_history
        return turns

    def get_history_vec(self) -> list[int] | None:
        """Token ids of the whole context, or None before the first utterance."""
        turns = self.turns()
        return self.dict.text.context_ids(turns) if turns else None

    def lines(self) -> set[str]:
        """Every line that was said, as `same` gives it: what repeat blocking does not say again."""
        return lines_of(self.history_raw_strings)


EARLIER = "earlier"
"""Where a message has the messages before it, when it is the first that a resumed run has of its conversation."""
MESSAGE_TURNS = "context_turns"
"""Where a message has its turns, when line ends in some of them look like those between turns in its text."""
EPOCH_EXAMPLES = "epoch_examples"
"""Where a training run's first messages say how many examples an epoch has."""

IN_SELECTION = ("convai2", "dstc7", "ubuntu")  # tasks of ParlAI that `-t selection:NAME` has as well
FROM_EXAMPLE = ("inline", "batch-all-cands")  # the candidate sources that each example must bring


def label_of(obs: Message, rng: random.Random, *, among: Container[str] | None = None) -> str | None:
    """The label to rank: of several one of the example's candidates, or `among` the fixed, if any is."""
    labels = obs.get("labels") or obs.get("eval_labels")
    if not labels:
        return None
    if len(labels) == 1:
        return str(labels[0])
    candidates = set(obs.get("label_candidates") or ()) if among is None else among
    return str(rng.choice([label for label in labels if label in candidates] or list(labels)))


class BadExamples:
    """What becomes of examples that cannot be used: an error, or they are skipped and counted as `bad_examples`.

    metrics: in which they are counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._has_skipped = metrics, False

    def usable(self, error: str | None, *, skip: bool) -> bool:
        """Whether an example can be used, which has this error or none.

        Raises:
            InputError: it cannot, and bad examples are not to be skipped (`--ignore-bad-candidates`).
        """
        if error is None:
            return True
        if not skip:
            raise InputError(f"{error}. To skip and count such examples set --ignore-bad-candidates true")
        if not self._has_skipped:
            logging.warning(f"skipped: {error}. Others are skipped without a word and counted as bad_examples.")
        self._has_skipped = True
        self._metrics.add("bad_examples", SumMetric(1))
        return False


def example_error(
    obs: Message,
    source: str,
    *,
    fixed: Container[str] | None = None,
    n_fixed: int | None = None,
    interactive: bool = False,
    surrounding: int = 2,
) -> str | None:
    """What makes this example unusable with this source of candidates, or None.

    `fixed` are the fixed candidates when a label must be one of them, `n_fixed` is how many there are; `interactive`
    allows an empty first message; `surrounding` is the number of tokens that a context has without any text.
    """
    own = obs.get("label_candidates") or () if source in FROM_EXAMPLE else ()
    if problem := half_characters([obs.get("full_text") or "", obs.get("label_choice") or "", *own]):
        return f"{_describe(obs)} cannot be read: {problem}"
    if len(obs["text_vec"]) <= surrounding and not interactive:
        return f"{_describe(obs)} has no text: a context needs at least one word"
    label = obs.get("label_choice")
    if "labels" in obs and not (label or "").strip():
        return f"{_describe(obs)} has no label to learn from"
    if source == "response" and label is None:
        return f"{_describe(obs)} has no label, which is the response that pre-training needs"
    return candidates_error(obs, source, fixed=fixed, n_fixed=n_fixed)


def candidates_error(
    obs: Message, source: str, *, fixed: Container[str] | None = None, n_fixed: int | None = None
) -> str | None:
    """What makes the candidates of this example unusable, or None; the arguments are those of `example_error`."""
    flag, label = "--candidates" if "labels" in obs else "--eval-candidates", obs.get("label_choice")
    if source == "batch" and label is None:
        return f"{_describe(obs)} has no label, which {flag} batch takes as a candidate; use inline or fixed"
    if source in FROM_EXAMPLE:
        candidates = obs.get("label_candidates")
        if not candidates:
            needs = f"has no candidates of its own, which {flag} {source} needs"
            fixed_ones = f"{flag} fixed with --fixed-candidates-path FILE, or {flag} batch with batches of 2 or more"
            return f"{_describe(obs)} {needs}; use {fixed_ones}{_drawing_task(obs)}"
        if label is not None and label not in candidates:
            return f"{_describe(obs)} has a label that is not among its {len(candidates)} candidates"
        if source == "inline" and label is not None and len(set(candidates)) == 1:
            return f"{_describe(obs)} has one candidate, its label: with {flag} inline there is nothing to choose"
    if source == "fixed" and label is not None and n_fixed == 1:
        return f"--fixed-candidates-path: with {flag} fixed and one candidate there is nothing to choose; give more"
    if source == "fixed" and label is not None and fixed is not None and label not in fixed:
        return (
            f"{_describe(obs)} has a label that is not among the fixed candidates (--add-label-to-fixed-cands true "
            "makes it a candidate of this example)"
        )
    return None


def _drawing_task(obs: Message) -> str:
    """Which of our tasks draws the candidates that this one, as a rule of ParlAI's, lacks."""
    task = str(obs.get("id", "")).partition(":")[0]
    if task == "selection":
        return ""
    name = f"selection:{task}" if task in IN_SELECTION else "selection:jsonl, for a file of pairs"
    return f", or -t {name}, which draws them"


def _describe(obs: Message) -> str:
    def shorten(text: str) -> str:
        return text if len(text) <= 80 else text[:77] + "..."

    place = f" in the episode {shorten(obs['full_text'])!r}" if obs.get("full_text") else ""
    label = f", label {shorten(obs['label_choice'])!r}," if obs.get("label_choice") else ""
    return f"task {obs.get('id', 'unknown')}: the example {shorten(obs.get('text') or '')!r}{label}{place}"
