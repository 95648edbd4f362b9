"""What the teachers of `-t selection:...` share: cheap metrics, and candidates only where an agent looks at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.teachers import DialogTeacher
from parlai.tasks.selection.metrics import RankingMetrics
from parlai.tasks.selection.negatives import NegativeSampler
from parlai.utils.data import DatatypeHelper

__all__ = ["CHOICES", "SelectionTeacher"]

# Where `setup_data` puts an example's own candidates. ParlAI's data class raises on a label that is missing from
# `label_candidates`; here it is the agent that decides what to do about such an example. A list, or one text joined by
# "|" as ParlAI's files have it: that takes a fraction of the memory and is split when the example is asked for.
CHOICES = "choices"
INLINE = ("inline", "batch-all-cands")


class SelectionTeacher(DialogTeacher):
    """A `DialogTeacher` whose `setup_data` yields `({"text", "labels"[, CHOICES]}, new_episode)`.

    `label_candidates` of the message are the example's own, or sampled ones if there is a `sampler` and the agent's
    `--candidates` (training) or `--eval-candidates` asks for inline candidates. An agent that trains with
    `--candidates batch` or `fixed` gets none, and does not pay for them.
    """

    sampler: NegativeSampler | None = None

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if opt.get("metrics", "default") == "default":  # whoever asks for more with --metrics gets ParlAI's
            self.metrics = RankingMetrics("default", shared=shared and shared["metrics"])
        training = DatatypeHelper.is_training(opt["datatype"])
        source = opt.get("candidates" if training else "eval_candidates")
        self.wants_candidates = source in INLINE
        self.gives_candidates = not training or source is None or self.wants_candidates
        if shared:
            self.sampler = shared["sampler"]
        super().__init__(opt, shared)

    def share(self) -> dict[str, Any]:
        return super().share() | {"sampler": self.sampler}

    def sample_from(self, labels: Iterable[str], *, source: str) -> None:
        """Sample candidates from these labels, for examples that have none of their own."""
        self.sampler = NegativeSampler(
            labels, count=self.opt["num_negatives"], seed=int(self.opt.get("teacher_seed") or 0), source=source
        )

    def next_example(self) -> tuple[Message, bool]:
        message, done = super().next_example()
        choices = message.pop(CHOICES, None)  # gone when a stream comes by here a second time
        if isinstance(choices, str):
            choices = choices.split("|")
        if choices is None and self.sampler is not None and message.get("labels"):
            # Fresh negatives each time in training; in evaluation always the same, in whichever order and process.
            key = None if self.training else f"{message['text']}\n{message['labels'][0]}"
            choices = self.sampler.candidates(message["labels"], key=key)
        if choices and self.gives_candidates and "label_candidates" not in message:
            message["label_candidates"] = choices
        return message, done
