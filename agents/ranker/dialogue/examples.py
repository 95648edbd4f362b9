"""Examples from ParlAI's messages: their labels, and validation."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Container, Sequence

import parlai.utils.logging as logging
from parlai.agents.ranker.dialogue.sources import Source
from parlai.core.message import Message
from parlai.core.metrics import Metrics, SumMetric
from parlai.core.opt import Opt

from polyencoder.checks import find_lone_surrogate
from polyencoder.data.example import Example
from polyencoder.errors import InputError

GRADES = "label_grades"
"""The field of a message with a number above 0 for each of its labels, higher for a better one; also as `2|1`."""
WITHOUT_NEGATIVES = "without_negatives"
"""The metric that counts skipped examples, whose label is the only candidate of their batch."""


def choose_label(obs: Message, rng: random.Random, *, among: Container[str] | None = None) -> str | None:
    """The label to rank: of the best grade, or among the example's or fixed candidates; invalid grades are none."""
    labels = _get_labels(obs)
    if not labels:
        return None
    if len(labels) == 1:
        return labels[0]
    candidates = set(obs.get("label_candidates") or ()) if among is None else among
    right = [label for label in labels if label in candidates] or labels
    with contextlib.suppress(InputError):
        if (grades := read_grades(obs)) is not None:
            return max(right, key=grades.__getitem__)
    return rng.choice(right)


def read_grades(obs: Message) -> dict[str, float] | None:
    """The numbers of a message's labels; None if it has none. Raises InputError if they are invalid."""
    grades_given, labels = obs.get(GRADES), _get_labels(obs)
    if grades_given is None:
        return None
    numbers = grades_given.split("|") if isinstance(grades_given, str) else grades_given
    if not isinstance(numbers, (list, tuple)) or len(numbers) != len(labels):
        raise InputError(f"has {len(labels)} labels, but {GRADES} {grades_given!r:.60}: give a number for each")
    try:
        grades = dict(zip(labels, map(float, numbers), strict=True))
    except (TypeError, ValueError):
        raise InputError(f"has {GRADES} {grades_given!r:.60}, which are no numbers") from None
    if grades:
        Example([], max(grades, key=grades.__getitem__), labels=grades)  # checks them
    return grades


def get_right_candidates(obs: Message, *, among: Container[str] | None = None) -> dict[str, float] | None:
    """The right candidates and their grades; None if that is the label alone, or without both grades and `among`."""
    grades = read_grades(obs)
    if grades is None and among is None:
        return None
    numbers = dict.fromkeys(_get_labels(obs), 1.0) if grades is None else grades
    right = {label: number for label, number in numbers.items() if among is None or label in among}
    return right if len(right) > 1 or (right and grades is not None) else None


def _get_labels(obs: Message) -> list[str]:
    return [str(label) for label in obs.get("labels") or obs.get("eval_labels") or ()]


class Examples:
    """Validates an agent's examples; an unusable one is an error, or counted (`--ignore-bad-candidates`)."""

    def __init__(self, opt: Opt, metrics: Metrics, *, surrounding: int = 2) -> None:
        self._metrics, self._surrounding = metrics, surrounding
        self._interactive = bool(opt.get("interactive_mode"))
        self._objective = opt.get("objective")
        self._skips = bool(opt.get("ignore_bad_candidates")) and not self._interactive
        self._has_skipped = self._has_examined = False

    def is_usable(self, obs: Message, source: Source) -> bool:
        """Whether an example can be used with this source. InputError: it cannot, and bad examples are not skipped."""
        problem = self._find_problem(obs, source)
        if problem is None:
            return True
        error = f"{_describe(obs)} {problem}"
        if not self._skips:
            raise InputError(f"{error}. To skip and count such examples set --ignore-bad-candidates true")
        if not self._has_skipped:
            logging.warning(f"skipped: {error}. Others are skipped silently and counted as bad_examples.")
        self._has_skipped = True
        self._metrics.add("bad_examples", SumMetric(1))
        return False

    def check_exam(self, labels: Sequence[str] | None, source: str, *, is_ranked: bool) -> None:
        """Counts examples whose label is the only candidate of a batch. InputError: the first batch has one."""
        if not is_ranked and labels is not None:
            if len(labels) == 1 and not self._has_examined and not self._skips:
                raise InputError(
                    f"--eval-candidates {source}: a batch of one example has one candidate, its own label, and nothing "
                    "to choose; give --eval-candidates fixed and --fixed-candidates-path FILE or, in eval_model, "
                    "--batchsize 2 or more"
                )
            self._metrics.add(WITHOUT_NEGATIVES, SumMetric(len(labels)))
        self._has_examined |= is_ranked

    def _find_problem(self, obs: Message, source: Source) -> str | None:
        """Why an example is unusable, or None. Without token ids (`text_vec`) only candidates are checked."""
        label = obs.get("label_choice")
        if problem := find_lone_surrogate(
            [obs.get("full_text") or "", label or "", *source.get_required_candidates(obs)]
        ):
            return f"cannot be read: {problem}"
        if "text_vec" in obs and len(obs["text_vec"]) <= self._surrounding and not self._interactive:
            return "has no text: a context needs at least one word"
        if "labels" in obs and not (label or "").strip():
            return "has no label to train on"
        try:
            best = max((read_grades(obs) or {}).values(), default=0)
        except InputError as error:
            return str(error)
        if self._objective == "bce" and "labels" in obs and best > 1:
            what = f"has a label of {best:g}, and --objective bce reads labels as probabilities"
            return f"{what}: divide them by the largest, or give another objective"
        return source.find_problem(obs)


def _describe(obs: Message) -> str:
    def shorten(text: str) -> str:
        return text if len(text) <= 80 else text[:77] + "..."

    episode = f" in the episode {shorten(obs['full_text'])!r}" if obs.get("full_text") else ""
    label = f", label {shorten(obs['label_choice'])!r}," if obs.get("label_choice") else ""
    return f"task {obs.get('id', 'unknown')}: the example {shorten(obs.get('text') or '')!r}{label}{episode}"
