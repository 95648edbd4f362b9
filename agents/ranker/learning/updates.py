"""ParlAI's optimizer, schedule and precision behind the library's `Trainer`, and its metrics of a batch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from parlai.agents.ranker.args import MAX_NONFINITE
from parlai.agents.ranker.sources import WITHOUT_NEGATIVES
from parlai.core.exceptions import StopTrainException
from parlai.core.metrics import AverageMetric, SumMetric
from parlai.core.torch_ranker_agent import TorchRankerAgent
from torch import Tensor

from polyencoder.errors import TrainingError, first_line
from polyencoder.evaluation import ranks
from polyencoder.training.callbacks import Callback, Run
from polyencoder.training.distributed import sum_gradients
from polyencoder.training.finite import FiniteUpdates
from polyencoder.training.objective import Outcome
from polyencoder.training.optimizer import clip_embeddings

__all__ = ["ParlaiUpdates", "Report"]


class ParlaiUpdates:
    """An agent's optimizer as the library's `Updates`.

    ParlAI wraps the model in DistributedDataParallel, which gives all processes the weights of the first. Its gradients
    are those of one forward pass for one backward pass, the same in every process; what is encoded in pieces, or not at
    all, is more than that. So the agent takes the wrapper off again, and the gradients are summed here.
    """

    def __init__(self, agent: TorchRankerAgent) -> None:
        self._agent = agent
        self._finite = FiniteUpdates(limit=agent.opt.get("max_nonfinite", MAX_NONFINITE))
        self.losses_are_finite = True
        """Those of the last batch."""

    @property
    def count(self) -> int:
        return int(self._agent._number_training_updates)

    @property
    def learning_rate(self) -> float:
        return float(self._agent.optimizer.param_groups[0]["lr"])

    @property
    def is_under_way(self) -> bool:
        return int(self._agent._number_grad_accum) > 0

    def autocast(self) -> torch.autocast:
        return self._agent.autocast()

    def zero_grad(self) -> None:
        self._agent.zero_grad()

    def check_losses(self, losses: Tensor) -> bool:
        self.losses_are_finite = self._finite.check_losses(losses)
        return self.losses_are_finite

    def backward(self, loss: Tensor) -> None:
        """As ParlAI's, but no gradient leaves this process before `step`."""
        agent = self._agent
        if (batches := agent.opt.get("update_freq", 1)) > 1:
            loss = loss / batches
            agent._number_grad_accum = (agent._number_grad_accum + 1) % batches
        if agent.fp16:
            agent.optimizer.backward(loss, update_main_grads=False)
        else:
            loss.backward()

    def step(self) -> None:
        """As ParlAI's, with the gradients of all processes; left out where a loss or a gradient is not finite.

        The end of a schedule is left to ParlAI's loop, which counts `--max-train-steps` as well. Were the loop broken
        off in its last step, that would be missing in the counters and reports; and they would be empty after a resumed
        run without any other step.
        """
        agent = self._agent
        if agent._number_grad_accum == 0:
            sum_gradients(agent.model.parameters())
            if self._finite.leaves_out(agent.model, number=self.count + 1, scaled=agent.fp16):
                self._leave_out()
                return
            if not agent.fp16:  # whose optimizers have no groups
                clip_embeddings(agent.optimizer)
        try:
            with suppress(StopTrainException):
                agent.update_params()
        except FloatingPointError as error:
            raise TrainingError(f"--fp16: {first_line(error)}") from None

    def _leave_out(self) -> None:
        """Count an update, and step the schedule, without learning from its gradients."""
        agent = self._agent
        agent.zero_grad()
        agent.global_metrics.add("nonfinite_updates", SumMetric(1))
        agent._number_training_updates += 1
        if agent.scheduler:
            with suppress(StopTrainException):
                agent.scheduler.step(agent._number_training_updates)

    def state_dict(self) -> dict[str, Any]:
        """The gradients of the batches since the last update (`--update-freq`), and what was left out: ParlAI keeps the
        rest."""
        agent = self._agent
        gradients = [p.grad for p in agent.model.parameters()] if agent._number_grad_accum else []
        left_out = self._finite.in_a_row
        return {"batches": agent._number_grad_accum, "gradients": gradients, "left_out_in_a_row": left_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._agent._number_grad_accum = state["batches"]
        self._finite.in_a_row = state.get("left_out_in_a_row", 0)
        for parameter, gradient in zip(self._agent.model.parameters(), state["gradients"], strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter)


class Report(Callback):
    """Adds what was learnt from a batch to the agent's metrics."""

    def __init__(self, agent: TorchRankerAgent, updates: ParlaiUpdates) -> None:
        self._metrics, self._updates = agent.global_metrics, updates
        self._skipped = 0

    def after_step(self, run: Run, outcome: Outcome | None) -> None:
        if left_out := run.skipped_examples - self._skipped:
            self._skipped += left_out
            self._metrics.add(WITHOUT_NEGATIVES, SumMetric(left_out))
        if outcome is None or not len(outcome) or not self._updates.losses_are_finite:
            return
        rank = ranks(outcome.scores, outcome.pool.labels)
        n = len(rank)
        self._metrics.add("mean_loss", AverageMetric(float(outcome.losses.sum()), n))
        self._metrics.add("train_accuracy", AverageMetric(int((rank == 1).sum()), n))
        self._metrics.add("rank", AverageMetric(int(rank.sum()), n))
        self._metrics.add("mrr", AverageMetric(float((1 / rank).sum()), n))
        for name, (value, count) in outcome.sums.items():
            self._metrics.add(name, AverageMetric(value, count) if count else SumMetric(value))
