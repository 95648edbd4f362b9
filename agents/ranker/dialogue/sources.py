"""`Source`: the contract of a source of candidates, for training and for answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence

import torch
from parlai.agents.ranker.dialogue.ranking import Confidence, Ranked
from parlai.agents.ranker.settings import format_flag, read_settings
from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch

from polyencoder.calibration import AnswerOptions, Calibration, read_calibration
from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.evaluation.names import parse_hits_at
from polyencoder.ranker import Ranker
from polyencoder.text import TokenBatch


class Source(ABC):
    """A source of candidates, made before the model is built, which `name` chooses; `open` prepares it for answers."""

    has_n = False
    """Whether the number of an example's candidates is the task's, and names its metrics: R20@1."""
    among: Container[str] | None = None
    """The texts that labels are preferably chosen from; None for the example's own candidates."""
    blocks_repeats = False
    """Whether a reply may not repeat an earlier line."""
    reads_turns = False
    """Whether answers need the contexts as text."""
    confidence: Confidence | None = None
    """The minimum probability of replies, if any."""
    where: str | None = None
    """The address of the index that is searched, if any."""

    def __init__(self, name: str, opt: Opt) -> None:
        self.name, self.opt = name, opt
        self.hits_at = parse_hits_at(opt.get("hits_at") or "1,5,10")

    # ---- examples

    def get_flag(self, obs: Message) -> str:
        """The flag that chooses the source of an example's candidates."""
        if "labels" in obs:
            return "--candidates"
        return "--interactive-candidates" if self.opt.get("interactive_mode") else "--eval-candidates"

    def get_required_candidates(self, obs: Message) -> Sequence[str]:
        """The candidates that an example must bring."""
        return ()

    def find_problem(self, obs: Message) -> str | None:
        """Why an example, whose label is `label_choice`, has no usable candidates; None if it has."""
        return None

    def get_right(self, obs: Message) -> dict[str, float] | None:
        """The right candidates of an example with their grades, if these are not the label alone."""
        return None

    # ---- training

    @abstractmethod
    def build_pool(self, batch: Batch) -> CandidatePool:
        """The candidates of a batch, from its `labels`, `candidates` and `right`."""

    # ---- answers

    def open(self, ranker: Callable[[], Ranker], *, autocast: Callable[[], torch.autocast], learns: bool) -> None:
        """Prepares answers by the model that `ranker` returns, in the precision of `autocast`.

        `learns`: whether the model will be trained. In a conversation a calibration's first promise is the default.
        Raises ConfigError for a minimum probability or risk (`--max-risk`) in training, or without a calibration.
        """
        self._ranker, self._autocast, self._learns = ranker, autocast, learns
        answers = AnswerOptions(**read_settings(self.opt, AnswerOptions))
        if learns and answers.limits:
            raise ConfigError(f"{format_flag(answers.limits[0])} is for a trained model: leave it out in training")
        if learns or not (answers.limits or self.opt.get("interactive_mode")):
            return
        calibration = self._get_calibration()
        if calibration is not None and not answers.limits and (promises := calibration.promises_for(self.where)):
            answers = AnswerOptions(max_risk=promises[0].risk)
        threshold = answers.threshold(calibration, of=ranker(), index=self.where)
        self.confidence = None if calibration is None or threshold is None else Confidence(calibration, threshold)

    def _get_calibration(self) -> Calibration | None:
        path = self.opt.get("model_file")
        return read_calibration(path, self._ranker()) if path else None

    @abstractmethod
    def answer(self, batch: Batch, *, top_k: int) -> Ranked | None:
        """The `top_k` best candidates of each example, and its metrics; None if each label is the only candidate."""

    @abstractmethod
    def clear(self) -> None:
        """Drops cached vectors after the model has changed."""


def build_contexts(batch: Batch) -> TokenBatch:
    """The contexts of a batch as the model's input."""
    return TokenBatch(batch.text_vec, batch.text_mask)
