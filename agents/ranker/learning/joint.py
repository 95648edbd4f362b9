"""Learning in several processes at once, as one process with the examples of all of them would.

Every process has a batch of its own. In each step they tell each other what their candidates are, encode each different
text once, in one of them, and score their own contexts with all of the vectors. The loss is the mean over all examples,
and the gradients of the weights are summed before the update. So neither batches of unequal size nor a batch of which
nothing can be used makes a difference to what is learnt, or leaves others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from parlai.agents.ranker.args import MAX_NONFINITE
from parlai.agents.ranker.model_agent import RankerModelAgent
from parlai.core.metrics import SumMetric
from parlai.core.opt import Opt
from parlai.utils.distributed import get_rank, is_distributed
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.errors import TrainingError, first_line
from polyencoder.models import RankerModel
from polyencoder.training.distributed import gather_objects, sum_gradients
from polyencoder.training.finite import FiniteUpdates


@dataclass(frozen=True)
class Step:
    """What an agent learns from at a time.

    pool: what the examples of this process choose from. examples: how many the processes have together. counts: how
    many texts of the pool each process encodes, in the pool's order; None where each has a pool of its own.
    """

    pool: CandidatePool
    examples: int
    counts: Sequence[int] | None = None

    @property
    def own_texts(self) -> Sequence[str]:
        """The texts that this process encodes."""
        if self.counts is None:
            return self.pool.texts
        start = sum(self.counts[: get_rank()])
        return self.pool.texts[start : start + self.counts[get_rank()]]


def joint_step(pool: CandidatePool, examples: int, *, gather: bool) -> Step:
    """The step of which this process has `pool` and so many examples.

    With `gather` all processes' pools become one, in which each text is once: in the place, and so with the process,
    where it is first. Without processes to join nothing changes.
    """
    if not is_distributed():
        return Step(pool, examples)
    everyone = gather_objects((examples, list(pool.texts) if gather else []))
    total = sum(count for count, _ in everyone)
    if not gather:
        return Step(pool, total)
    places: dict[str, int] = {}
    counts = []
    for _, texts in everyone:
        before = len(places)
        for text in texts:
            places.setdefault(text, len(places))
        counts.append(len(places) - before)
    return Step(_widened(pool, places), total, counts)


def _widened(pool: CandidatePool, places: dict[str, int]) -> CandidatePool:
    """A pool with more texts, at these places. What an example may not choose among the pool's own stays excluded."""
    labels, mask = pool.labels, pool.mask
    if labels is None:
        return CandidatePool(list(places))
    columns = torch.tensor([places[text] for text in pool.texts], dtype=torch.long, device=labels.device)
    if mask is not None:
        mask = mask.new_ones(len(mask), len(places)).index_copy(1, columns, mask)
    return CandidatePool(list(places), columns[labels], mask=mask)


class JointAgent(RankerModelAgent):
    """An agent that may be one of several processes.

    ParlAI wraps the model in DistributedDataParallel, which gives all processes the weights of the first. Its gradients
    are those of one forward pass for one backward pass, the same in every process; what is encoded in pieces, or not at
    all, is more than that. So the wrapper is taken off again, and `update_params` sums the gradients.
    """

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self._finite = FiniteUpdates(limit=opt.get("max_nonfinite", MAX_NONFINITE))
        super().__init__(opt, shared)
        self.model = self.ranker

    def build_model(self) -> RankerModel:
        if is_distributed() and not self.use_cuda:
            self.model_parallel = True  # else ParlAI names a GPU to DistributedDataParallel, also where there is none
        return super().build_model()

    def backward(self, loss: Tensor, **options: Any) -> None:
        """As ParlAI's, but no gradient leaves this process before `update_params`."""
        steps = self.opt.get("update_freq", 1)
        if steps > 1:
            loss = loss / steps
            self._number_grad_accum = (self._number_grad_accum + 1) % steps
        if self.fp16:
            self.optimizer.backward(loss, update_main_grads=False, **options)
        else:
            loss.backward(**options)

    def update_params(self) -> None:
        """As ParlAI's, with the gradients of all processes; left out where a loss or a gradient is not finite."""
        if self._number_grad_accum == 0:
            if is_distributed():
                sum_gradients(self.ranker.parameters())
            if self._finite.leaves_out(self.ranker, number=self._number_training_updates + 1, scaled=self.fp16):
                self._leave_out_update()
                return
        try:
            super().update_params()
        except FloatingPointError as error:
            raise TrainingError(f"--fp16: {first_line(error)}") from None

    def _leave_out_update(self) -> None:
        """Count an update, and step the schedule, without learning from its gradients."""
        self.zero_grad()
        self.global_metrics.add("nonfinite_updates", SumMetric(1))
        self._number_training_updates += 1
        if self.scheduler:
            self.scheduler.step(self._number_training_updates)
