"""Examples from ParlAI's messages: validation, and the candidates of a batch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Container, Sequence

import parlai.utils.logging as logging
from parlai.agents.ranker.dialogue.fixed import FixedCandidates
from parlai.agents.ranker.dialogue.sources import WITHOUT_NEGATIVES, no_negatives_error
from parlai.core.message import Message
from parlai.core.metrics import Metrics, SumMetric
from parlai.core.opt import Opt

from polyencoder.checks import lone_surrogates
from polyencoder.data.example import Example
from polyencoder.data.pool import CandidatePool, Relevance, batch_pool
from polyencoder.errors import InputError

__all__ = ["GRADES", "Examples", "label_of", "right_of"]

IN_SELECTION = ("convai2", "dstc7", "ubuntu")  # tasks of ParlAI with a `-t selection:NAME`
FROM_EXAMPLE = ("inline", "batch-all-cands")  # the candidate sources that each example must bring
GRADES = "label_grades"
"""The field of a message with a number above 0 for each of its labels, higher for a better one; also as `2|1`."""


def label_of(obs: Message, rng: random.Random, *, among: Container[str] | None = None) -> str | None:
    """The label to rank: of several, one among the example's or the fixed candidates, if any; of graded ones, the best.

    Invalid grades count as none: `Examples` reports them.
    """
    labels = _labels(obs)
    if not labels:
        return None
    if len(labels) == 1:
        return labels[0]
    candidates = set(obs.get("label_candidates") or ()) if among is None else among
    found = [label for label in labels if label in candidates] or labels
    with contextlib.suppress(InputError):
        if (grades := grades_of(obs)) is not None:
            return max(found, key=grades.__getitem__)
    return rng.choice(found)


def grades_of(obs: Message) -> dict[str, float] | None:
    """The numbers of a message's labels; None if it has none. Raises InputError if they are invalid."""
    given, labels = obs.get(GRADES), _labels(obs)
    if given is None:
        return None
    numbers = given.split("|") if isinstance(given, str) else given
    if not isinstance(numbers, (list, tuple)) or len(numbers) != len(labels):
        raise InputError(f"has {len(labels)} labels, but {GRADES} {given!r:.60}: give a number for each")
    try:
        grades = dict(zip(labels, map(float, numbers), strict=True))
    except (TypeError, ValueError):
        raise InputError(f"has {GRADES} {given!r:.60}, which are no numbers") from None
    if grades:
        Example([], max(grades, key=grades.__getitem__), labels=grades)  # checks them
    return grades


def right_of(obs: Message, source: str) -> dict[str, float] | None:
    """The right candidates of an example, if these are not the label alone.

    Those of its labels that are among its own candidates, if there are several; graded ones also if the candidates are
    those of the batch.
    """
    grades = grades_of(obs)
    found = dict.fromkeys(_labels(obs), 1.0) if grades is None else grades
    if source in FROM_EXAMPLE:
        candidates = set(obs.get("label_candidates") or ())
        found = {label: number for label, number in found.items() if label in candidates}
    elif source != "batch" or grades is None:
        return None
    return found if len(found) > 1 or (found and grades is not None) else None


def _labels(obs: Message) -> list[str]:
    return [str(label) for label in obs.get("labels") or obs.get("eval_labels") or ()]


class Examples:
    """Validates an agent's examples, and collects their candidates from its sources.

    An unusable example is an error, or skipped and counted as `bad_examples` (`--ignore-bad-candidates`); in a
    conversation it is always an error, since an answer is expected.

    Args:
        opt: of the agent.
        metrics: counts the skipped examples.
        fixed: the fixed candidates, if a source is `fixed`.
        surrounding: the number of tokens that a context has without any text.
    """

    def __init__(
        self, opt: Opt, metrics: Metrics, *, fixed: FixedCandidates | None = None, surrounding: int = 2
    ) -> None:
        self._metrics, self._fixed, self._surrounding = metrics, fixed, surrounding
        self._add_label = bool(opt.get("add_label_to_fixed_cands"))
        self._interactive = bool(opt.get("interactive_mode"))
        self._objective = opt.get("objective")
        self._skips = bool(opt.get("ignore_bad_candidates")) and not self._interactive
        self._has_skipped = self._has_examined = False

    def is_usable(self, obs: Message, source: str) -> bool:
        """Whether an example can be used with this source of candidates.

        Raises:
            InputError: it cannot, and bad examples are not skipped.
        """
        error = self._error(obs, source)
        if error is None:
            return True
        if not self._skips:
            raise InputError(f"{error}. To skip and count such examples set --ignore-bad-candidates true")
        if not self._has_skipped:
            logging.warning(f"skipped: {error}. Others are skipped silently and counted as bad_examples.")
        self._has_skipped = True
        self._metrics.add("bad_examples", SumMetric(1))
        return False

    def pool(
        self,
        source: str,
        *,
        labels: Sequence[str] | None,
        candidates: Sequence[Sequence[str]] | None,
        right: Relevance | None = None,
    ) -> CandidatePool:
        """The candidate pool of a batch, from its labels and own candidates, of which several may be right."""
        return batch_pool(
            source,
            labels=labels,
            candidates=candidates,
            fixed=self._fixed,
            add_label=self._add_label,
            relevance=right,
        )

    def exam(
        self,
        source: str,
        *,
        labels: Sequence[str] | None,
        candidates: Sequence[Sequence[str]] | None,
        right: Relevance | None = None,
    ) -> CandidatePool | None:
        """Like `pool`, for an evaluation; None if labels are the only candidates: the batch is skipped and counted.

        Raises:
            InputError: the evaluation begins with one such example.
        """
        pool = self.pool(source, labels=labels, candidates=candidates, right=right)
        if labels is not None and not pool.has_negatives:
            if len(labels) == 1 and not self._has_examined and not self._skips:
                raise no_negatives_error(source)
            self._metrics.add(WITHOUT_NEGATIVES, SumMetric(len(labels)))
            return None
        self._has_examined = True
        return pool

    def _error(self, obs: Message, source: str) -> str | None:
        """Why an example is unusable, or None. Without token ids (`text_vec`) only candidates are checked."""
        label, fixed = obs.get("label_choice"), self._fixed
        own = obs.get("label_candidates") or () if source in FROM_EXAMPLE else ()
        if problem := lone_surrogates([obs.get("full_text") or "", label or "", *own]):
            return f"{_describe(obs)} cannot be read: {problem}"
        if "text_vec" in obs and len(obs["text_vec"]) <= self._surrounding and not self._interactive:
            return f"{_describe(obs)} has no text: a context needs at least one word"
        if "labels" in obs and not (label or "").strip():
            return f"{_describe(obs)} has no label to train on"
        if source == "response" and label is None:
            return f"{_describe(obs)} has no label, which is the response that pre-training needs"
        try:
            grades = grades_of(obs) or {}
        except InputError as error:
            return f"{_describe(obs)} {error}"
        if self._objective == "bce" and "labels" in obs and max(grades.values(), default=0) > 1:
            what = f"has a label of {max(grades.values()):g}, and --objective bce reads labels as probabilities"
            return f"{_describe(obs)} {what}: divide them by the largest, or give another objective"
        flag = "--candidates" if "labels" in obs else "--eval-candidates"
        if source == "batch" and label is None:
            return f"{_describe(obs)} has no label, which {flag} batch takes as a candidate; use inline or fixed"
        if source in FROM_EXAMPLE:
            candidates = obs.get("label_candidates")
            if not candidates:
                needs = f"has no candidates of its own, which {flag} {source} needs"
                fixed_ones = (
                    f"{flag} fixed with --fixed-candidates-path FILE, or {flag} batch with batches of 2 or more"
                )
                return f"{_describe(obs)} {needs}; use {fixed_ones}{_drawing_task(obs)}"
            if label is not None and label not in candidates:
                return f"{_describe(obs)} has a label that is not among its {len(candidates)} candidates"
            if source == "inline" and label is not None and len(set(candidates)) == 1:
                return f"{_describe(obs)} has one candidate, its label: with {flag} inline there are no negatives"
        if source != "fixed" or label is None or fixed is None:
            return None
        if len(fixed.texts) == 1:
            return f"--fixed-candidates-path: with {flag} fixed and one candidate there is nothing to choose; give more"
        if label not in fixed.place and not self._add_label:
            return (
                f"{_describe(obs)} has a label that is not among the fixed candidates (--add-label-to-fixed-cands true "
                "makes it a candidate of this example)"
            )
        return None


def _drawing_task(obs: Message) -> str:
    """Names our task that samples the candidates which this one (mostly a ParlAI task) lacks."""
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
